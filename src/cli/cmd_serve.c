/* cmd_serve.c - `spillway serve`: the HTTP server over one model.
 *
 * Place: cli. Order: bind, answer /health with 503, load, self-test, open the routes. A second
 *        server on the same port thus fails in the first second, not after minutes of loading.
 * Threads: the main thread loads and then waits, with an eye on the engine's steps (watchdog.h); one
 *        runs the HTTP loop, one waits for signals; the engine has its own. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/compat_flags.h"
#include "cli/model_setup.h"
#include "cli/sd_notify.h"
#include "cli/serve_flags.h"
#include "cli/signals.h"
#include "cli/watchdog.h"
#include "runtime/engine.h"
#include "runtime/selftest.h"
#include "server/server.h"

/* After the watchdog gave up: for the requests' errors to leave. */
enum { GIVE_UP_MS = 800 };

/* Tells the main thread that the HTTP loop has returned. */
struct loop_end {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* waits by the monotonic clock */
    bool is_over;           /* guarded by lock */
};

struct serve {
    struct model_flags model_flags;
    struct serve_flags flags;
    struct flag_result parsed;
    struct log *log;
    struct settings settings; /* of the server */
    struct server_options options;
    char *key_text;
    struct server *server;
    struct signal_watch *signals;
    pthread_t loop;
    struct loop_end loop_end;
    bool loop_started;
    enum status loop_status; /* with loop_error: the loop thread's until it is joined */
    struct error loop_error;
    struct model_setup setup;
    struct engine *engine;
    struct json_object *info;
};

static void loop_end_init(struct loop_end *e)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void loop_end_release(struct loop_end *e)
{
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
}

/* Waits for at most wait_ms; false: the loop still runs. */
static bool loop_end_wait(struct loop_end *e, unsigned wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->lock);
    while (!e->is_over && pthread_cond_timedwait(&e->changed, &e->lock, &until) != ETIMEDOUT) {
    }
    bool is_over = e->is_over;
    pthread_mutex_unlock(&e->lock);
    return is_over;
}

static void *run_loop(void *arg)
{
    struct serve *s = arg;
    s->loop_status = server_run(s->server, &s->loop_error);
    pthread_mutex_lock(&s->loop_end.lock);
    s->loop_end.is_over = true;
    pthread_cond_signal(&s->loop_end.changed);
    pthread_mutex_unlock(&s->loop_end.lock);
    return NULL;
}

/* "http://[::1]:30000" */
static void server_url(char *out, size_t n, const struct serve *s)
{
    bool is_v6 = strchr(s->flags.host, ':') != NULL;
    snprintf(out, n, "http://%s%s%s:%u", is_v6 ? "[" : "", s->flags.host, is_v6 ? "]" : "",
             (unsigned)server_port(s->server));
}

static enum status start_loop(struct serve *s, struct error *err)
{
    char url[512];
    enum status rc = server_new(&s->server, &s->options, err);
    if (rc != OK) {
        return rc;
    }
    server_url(url, sizeof url, s);
    log_info(s->log, "listening on %s; /health answers 503 until the model is ready", url);
    int failed = pthread_create(&s->loop, NULL, run_loop, s);
    if (failed) {
        return error_set(err, ERR_NO_MEMORY, "cannot start the server's thread: %s",
                         strerror(failed));
    }
    s->loop_started = true;
    return signal_watch_new(&s->signals, s->server, s->flags.shutdown_timeout_s, s->log, err);
}

static enum status self_test(struct serve *s, struct error *err)
{
    struct selftest_report report = {0};
    enum status rc =
        selftest_run(s->setup.model, s->setup.activations != CPU_ACTIVATIONS_F32, &report, err);
    if (rc != OK) {
        return rc;
    }
    log_info(s->log, "self-test passed: %zu tokens in %.2f s, prefill and decode agree within %.1e",
             report.n_tokens, report.seconds, report.max_rel_error);
    return OK;
}

static enum status start_engine(struct serve *s, struct error *err)
{
    uint64_t seed = (uint64_t)s->flags.random_seed;
    if (s->flags.random_seed < 0) {
        if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
            return error_set(err, ERR_IO, "cannot draw a random seed");
        }
        seed &= (1u << 30) - 1; /* short enough to type again */
    }
    log_info(s->log, "random seed: %llu", (unsigned long long)seed);
    struct engine_options o = {
        .max_running = s->setup.max_running,
        .max_queued = s->flags.max_queued_requests,
        .chunk_tokens = s->setup.chunk_tokens,
        .max_prefill_tokens = s->setup.max_prefill_tokens,
        .context_length = s->setup.context_length,
        .random_seed = seed,
        .log = s->log,
        .decode_log_interval = s->flags.decode_log_interval,
    };
    enum status rc = engine_new(&s->engine, s->setup.model, s->setup.tokenizer, s->setup.eos_ids,
                                s->setup.n_eos_ids, &o, err);
    return rc == OK ? engine_start(s->engine, err) : rc;
}

/* What /server_info tells: the model's settings, then the server's. */
static enum status make_info(struct serve *s, struct error *err)
{
    s->info = settings_json(&s->setup.settings);
    struct json_object *more = settings_json(&s->settings);
    bool ok = s->info && more;
    if (ok) {
        json_object_object_foreach(more, key, value)
        {
            ok = ok && json_object_object_add(s->info, key, json_object_get(value)) == 0;
        }
    }
    json_object_put(more);
    return ok ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the server's description");
}

static enum status load_model(struct serve *s, struct error *err)
{
    const struct model_setup_options o = {.want_tokenizer = true, .want_template = true};
    sd_notify_send("STATUS=loading the model");
    enum status rc = model_setup_open(&s->setup, &s->model_flags, &o, s->log, err);
    if (rc == OK) {
        rc = self_test(s, err);
    }
    if (rc == OK) {
        rc = start_engine(s, err);
    }
    if (rc == OK) {
        rc = make_info(s, err);
    }
    return rc;
}

static bool read_offload(void *ctx, struct offload_stats *out)
{
    return model_offload_stats(ctx, out);
}

static void open_routes(struct serve *s)
{
    char url[512];
    const struct server_model m = {
        .engine = s->engine,
        .tokenizer = s->setup.tokenizer,
        .chat_template = s->setup.chat_template,
        .generation = s->setup.generation,
        .config = model_get_config(s->setup.model),
        .context_length = s->setup.context_length,
        .max_running = s->setup.max_running,
        .info = s->info,
        .read_offload = read_offload,
        .offload_ctx = s->setup.model,
    };
    signal_watch_serving(s->signals);
    server_set_ready(s->server, &m);
    server_url(url, sizeof url, s);
    log_info(s->log, "The server is fired up and ready to roll! %s", url);
    sd_notify_send("READY=1\nSTATUS=serving");
}

/* A step does not end. Its thread cannot be stopped and holds what everything else would have to free;
 * so the requests get an error, and the process ends as it stands. */
static void give_up(struct serve *s, const struct engine_stats *stats)
{
    log_error(s->log,
              "watchdog: step %llu of the model has run for %.3g s, --watchdog-timeout allows %.3g "
              "s (%zu requests running, %zu waiting): ending the program",
              (unsigned long long)stats->steps + 1, clock_seconds_since(stats->step_started_ns),
              s->flags.watchdog_timeout_s, stats->n_running, stats->n_queued);
    sd_notify_send("STOPPING=1\nSTATUS=a step of the model did not end");
    server_request_stop(s->server, 2);
    loop_end_wait(&s->loop_end, GIVE_UP_MS);
    _exit(EXIT_CODE_WATCHDOG);
}

/* The card's driver has given up on this process: nothing on the card can be used or given back. Requests
 * have got their error; whoever started the server starts it again. */
static void device_lost(struct serve *s)
{
    log_error(s->log,
              "the device is lost: ending the program; see the error above for the first cause");
    sd_notify_send("STOPPING=1\nSTATUS=the device is lost");
    server_request_stop(s->server, 2);
    loop_end_wait(&s->loop_end, GIVE_UP_MS);
    _exit(EXIT_CODE_DEVICE_LOST);
}

/* Until the HTTP loop ends. */
static void wait_and_watch(struct serve *s)
{
    const double limit_s = s->flags.watchdog_timeout_s;
    while (!loop_end_wait(&s->loop_end, watchdog_interval_ms(limit_s))) {
        struct engine_stats stats = {0};
        engine_get_stats(s->engine, &stats);
        if (watchdog_is_late(&stats, limit_s, clock_now_ns())) {
            give_up(s, &stats);
        }
        if (stats.device_failed) {
            device_lost(s);
        }
    }
}

/* Connections hold ports of the engine, so the server goes first. */
static void serve_release(struct serve *s)
{
    signal_watch_detach(s->signals);
    server_free(s->server);
    engine_free(s->engine);
    model_setup_close(&s->setup);
    signal_watch_free(s->signals); /* guards the steps above against a step that hangs */
    json_object_put(s->info);
    json_object_put(s->options.default_template_kwargs);
    free(s->key_text);
    flags_release(&s->parsed);
}

static enum status parse_flags(struct serve *s, int argc, char **argv, struct error *err)
{
    const struct flag_group groups[] = {
        {"Model", model_flag_table, model_flag_count, &s->model_flags},
        {"Server", serve_flag_table, serve_flag_count, &s->flags},
        compat_groups[0],
        compat_groups[1],
    };
    model_flags_defaults(&s->model_flags);
    serve_flags_defaults(&s->flags);
    enum status rc = flags_parse(&s->parsed, &command_serve, groups,
                                 sizeof groups / sizeof groups[0], 1, argc, argv, NULL, err);
    if (rc != OK || s->parsed.help) {
        return rc;
    }
    if (s->parsed.n_positional && flags_typed(&s->parsed, "model-path")) {
        return error_set(err, ERR_USAGE, "the model is named twice: '%s' and --model-path '%s'",
                         s->parsed.positional[0], s->model_flags.model_path);
    }
    if (s->parsed.n_positional) {
        s->model_flags.model_path = s->parsed.positional[0];
    }
    rc = compat_check(&s->parsed, err);
    if (rc == OK && !s->model_flags.model_path) {
        rc = error_set(err, ERR_USAGE,
                       "no model: give --model-path FOLDER (models/rill is a small one)");
    }
    return rc;
}

static enum status serve(struct serve *s, struct error *err)
{
    serve_flags_set_log(s->log, &s->flags);
    flags_print_notes(&s->parsed, s->log);
    enum status rc = serve_flags_resolve(&s->options, &s->key_text, &s->flags,
                                         s->model_flags.model_path, &s->settings, s->log, err);
    if (rc != OK) {
        return rc;
    }
    signals_block();
    settings_print(&s->settings, s->log, false);
    rc = start_loop(s, err);
    if (rc == OK) {
        rc = load_model(s, err);
    }
    if (rc == OK) {
        open_routes(s);
        wait_and_watch(s);
    } else if (s->loop_started) {
        server_request_stop(s->server, 2);
    }
    if (s->loop_started) {
        pthread_join(s->loop, NULL);
        if (rc == OK && s->loop_status != OK) {
            *err = s->loop_error;
            rc = s->loop_status;
        }
    }
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct error err = {0};
    struct serve *s = calloc(1, sizeof *s); /* too large for comfort on the stack */
    if (!s) {
        error_set(&err, ERR_NO_MEMORY, "cannot allocate the server");
        return command_fail(&err);
    }
    s->log = log;
    loop_end_init(&s->loop_end);
    enum status rc = parse_flags(s, argc, argv, &err);
    bool help = s->parsed.help;
    if (rc == OK && !help) {
        rc = serve(s, &err);
    }
    serve_release(s);
    loop_end_release(&s->loop_end);
    free(s);
    if (rc == OK && !help) {
        log_info(log, "stopped");
    }
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, with OpenAI's API",
    .arguments = "[MODEL]",
    .examples = "spillway serve --model-path models/rill --port 30000\n"
                "spillway serve org/name --host 0.0.0.0 --api-key-file key.txt\n"
                "spillway serve --config serve.yaml --log-format json\n"
                "curl http://localhost:30000/v1/chat/completions \\\n"
                "  -H 'Content-Type: application/json' \\\n"
                "  -d '{\"model\":\"default\",\"messages\":[{\"role\":\"user\",\"content\":"
                "\"Hello\"}],\"max_tokens\":50}'\n",
    .run = run,
};
