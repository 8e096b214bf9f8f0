/* cmd_run.c - `spillway run`: one answer on standard output.
 *
 * Place: cli. The answer alone goes to standard output; thinking (when asked for), numbers and warnings go
 *        to standard error, so that the command works in a pipe. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generator.h"
#include "cli/model_setup.h"
#include "cli/sample_flags.h"

enum { STDIN_BYTES_MAX = 64 << 20, WORDS_MAX = 4096 };

struct run_flags {
    const char *system;
    bool raw, quiet, verbose;
};

static const struct flag run_flag_table[] = {
    {.name = "raw",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct run_flags, raw),
     .help = "continue the prompt as it is, without the chat template; control tokens count"},
    {.name = "system",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct run_flags, system),
     .metavar = "TEXT",
     .help = "system message before the prompt"},
    {.name = "quiet",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct run_flags, quiet),
     .help = "no numbers after the answer"},
    {.name = "verbose",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct run_flags, verbose),
     .help = "print the effective settings and the plan while loading"},
};

struct output {
    bool show_thinking, out_is_tty, err_is_tty;
    char last; /* of the answer so far */
};

static void print_text(void *ctx, struct str text, bool is_thinking)
{
    struct output *o = ctx;
    FILE *to = is_thinking ? stderr : stdout;
    if (is_thinking && !o->show_thinking) {
        return;
    }
    if (is_thinking ? o->err_is_tty : o->out_is_tty) {
        struct buf safe;
        buf_init(&safe);
        terminal_text(&safe, text);
        fwrite(buf_cstr(&safe), 1, safe.len, to);
        buf_release(&safe);
    } else {
        fwrite(text.ptr, 1, text.len, to);
    }
    fflush(to);
    if (!is_thinking && text.len > 0) {
        o->last = text.ptr[text.len - 1];
    }
}

/* The words joined by blanks; "-" or no words: standard input. */
static enum status read_prompt(struct buf *out, const struct flag_result *given, struct error *err)
{
    bool from_stdin = given->n_positional == 0 ||
                      (given->n_positional == 1 && strcmp(given->positional[0], "-") == 0);
    char bytes[4096];
    size_t n;
    if (!from_stdin) {
        for (size_t i = 0; i < given->n_positional; i++) {
            buf_appendf(out, "%s%s", i ? " " : "", given->positional[i]);
        }
        return buf_ok(out) ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the prompt");
    }
    if (given->n_positional == 0 && isatty(STDIN_FILENO)) {
        return error_set(err, ERR_USAGE, "no prompt: spillway run --model FOLDER 'your question'");
    }
    while ((n = fread(bytes, 1, sizeof bytes, stdin)) > 0) {
        buf_append(out, bytes, n);
    }
    if (ferror(stdin)) {
        return error_set(err, ERR_IO, "cannot read the prompt: %s", strerror(errno));
    }
    if (!buf_ok(out)) {
        return error_set(err, ERR_USAGE, "the prompt on standard input is longer than %d bytes",
                         STDIN_BYTES_MAX);
    }
    return OK;
}

/* The messages and the template's variables; both are the caller's to release. */
static enum status make_chat(struct conversation *chat, struct json_object **kwargs,
                             const struct run_flags *f, bool no_thinking, struct str prompt,
                             struct error *err)
{
    if (utf8_valid_prefix(prompt.ptr, prompt.len) != prompt.len) {
        return error_set(err, ERR_USAGE, "the prompt is not valid UTF-8");
    }
    *kwargs = json_object_new_object();
    bool ok = conversation_init(chat) && *kwargs;
    if (ok && f->system) {
        ok = conversation_set_system(chat, str_of(f->system));
    }
    ok = ok && conversation_add_user(chat, prompt);
    if (ok && no_thinking) {
        ok = json_object_object_add(*kwargs, "enable_thinking", json_object_new_boolean(0)) == 0;
    }
    return ok ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the messages");
}

static enum status answer(struct generator *g, const struct generator_request *r,
                          const struct run_flags *f, bool show_thinking, struct error *err)
{
    struct generator_result result;
    struct output o = {.show_thinking = show_thinking,
                       .out_is_tty = isatty(STDOUT_FILENO) == 1,
                       .err_is_tty = isatty(STDERR_FILENO) == 1};
    const struct generator_sink sink = {.text = print_text, .ctx = &o};
    enum status rc = generator_run(g, r, &sink, &result, err);
    if (o.last != '\0' && o.last != '\n') {
        putchar('\n');
    }
    if (fflush(stdout) != 0 && rc == OK) {
        rc = error_set(err, ERR_IO, "cannot write the answer: %s", strerror(errno));
    }
    if (rc == OK && result.content.len == 0 && result.thinking.len > 0 && !show_thinking) {
        fprintf(stderr, "spillway: the answer is empty: all tokens went into thinking "
                        "(--show-thinking, --no-thinking, or a larger --max-tokens)\n");
    }
    if (rc == OK && !f->quiet) {
        char stats[256];
        generator_stats_text(stats, sizeof stats, &result);
        fprintf(stderr, "%s\n", stats);
    }
    generator_result_release(&result);
    return rc;
}

struct run_all {
    struct model_flags model;
    struct sample_flags sample;
    struct run_flags run;
    struct flag_result given;
};

static enum status run_parsed(struct run_all *a, struct log *log, struct error *err)
{
    struct generator g;
    struct generator_request r = {.max_tokens = a->sample.max_tokens};
    struct conversation chat = {0};
    struct json_object *kwargs = NULL;
    struct buf prompt;
    if (!a->model.model_path) {
        return error_set(err, ERR_USAGE, "no model: give --model FOLDER");
    }
    buf_init_limited(&prompt, STDIN_BYTES_MAX);
    enum status rc = read_prompt(&prompt, &a->given, err);
    struct str text = {buf_cstr(&prompt), prompt.len};
    if (rc == OK && a->run.raw) {
        r.raw = text;
    } else if (rc == OK) {
        rc = make_chat(&chat, &kwargs, &a->run, a->sample.no_thinking, text, err);
        r.messages = chat.messages;
        r.kwargs = kwargs;
    }
    if (rc == OK) {
        log->level = a->run.verbose ? LOG_INFO : LOG_WARNING;
        const struct generator_options o = {.want_template = !a->run.raw,
                                            .verbose = a->run.verbose};
        rc = generator_open(&g, &a->model, &o, log, err);
    }
    if (rc == OK) {
        r.sampling = sample_flags_resolve(&a->sample, &a->given, &g.setup.generation);
        rc = answer(&g, &r, &a->run, a->sample.show_thinking, err);
        generator_close(&g);
    }
    conversation_release(&chat);
    json_object_put(kwargs);
    buf_release(&prompt);
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct run_all a = {0};
    struct error err = {0};
    model_flags_defaults(&a.model);
    const struct flag_group groups[] = {
        {"Answer", run_flag_table, sizeof run_flag_table / sizeof run_flag_table[0], &a.run},
        {"Sampling", sample_flag_table, sample_flag_count, &a.sample},
        {"Model", model_flag_table, model_flag_count, &a.model},
    };
    enum status rc = flags_parse(&a.given, &command_run, groups, sizeof groups / sizeof groups[0],
                                 WORDS_MAX, argc, argv, log, &err);
    if (rc == OK && !a.given.help) {
        rc = run_parsed(&a, log, &err);
    }
    flags_release(&a.given);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_run = {
    .name = "run",
    .summary = "answer one prompt and exit",
    .arguments = "[PROMPT...]",
    .examples = "spillway run --model models/rill 'What is a spillway?'\n"
                "spillway run --model models/rill --no-thinking --temperature 0 Hello\n"
                "spillway run --model models/rill --raw --max-tokens 20 'Once upon a time'\n"
                "cat question.txt | spillway run --model models/rill - > answer.txt\n",
    .run = run,
};
