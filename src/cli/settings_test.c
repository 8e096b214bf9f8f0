/* settings_test.c - resolved values, the settings table, the memory check, compatibility flags. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/compat_flags.h"
#include "cli/memory_check.h"
#include "cli/model_resolve.h"
#include "cli/serve_flags.h"

static bool layer_is_full[8] = {[3] = true, [7] = true};

static struct model_config small_config(void)
{
    return (struct model_config){.n_layers = 8,
                                 .layer_is_full = layer_is_full,
                                 .hidden_size = 256,
                                 .vocab_size = 4096,
                                 .max_positions = 8192,
                                 .n_heads = 4,
                                 .n_kv_heads = 2,
                                 .head_dim = 64,
                                 .linear_n_key_heads = 2,
                                 .linear_n_value_heads = 4,
                                 .linear_key_dim = 64,
                                 .linear_value_dim = 64,
                                 .linear_conv_taps = 4,
                                 .ssm_dtype = DTYPE_NONE};
}

static const struct setting *row_of(const struct settings *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->rows[i].name, name) == 0) {
            return &s->rows[i];
        }
    }
    fail_msg("no row '%s'", name);
    return NULL;
}

struct resolved {
    struct model_resolved r;
    struct settings s;
    struct error err;
    enum status rc;
};

static struct resolved resolve(const struct model_flags *f, const struct model_config *c)
{
    struct resolved x = {0};
    const struct resolve_place place = {.max_running = MAX_RUNNING_DEFAULT};
    x.rc = model_resolve(&x.r, f, c, &place, &x.s, &x.err);
    return x;
}

static void test_defaults(void **state)
{
    (void)state;
    struct model_config c = small_config();
    struct model_flags f = {0};
    model_flags_defaults(&f);
    struct resolved x = resolve(&f, &c);
    assert_int_equal(x.rc, OK);
    assert_int_equal(x.r.compute, DTYPE_F32);
    assert_int_equal(x.r.kv, DTYPE_F32);
    assert_int_equal(x.r.recurrent, DTYPE_F32);
    assert_int_equal(x.r.max_running, 32);
    assert_int_equal(x.r.context_length, 8192);
    assert_int_equal(x.r.max_total_tokens, 65536);
    assert_int_equal(x.r.chunk_tokens, 2048);
    assert_int_equal(x.r.max_prefill_tokens, 2048);
    assert_int_equal(x.r.rows_max, 2048 + 32);
    assert_string_equal(row_of(&x.s, "dtype")->asked, "auto");
    assert_string_equal(row_of(&x.s, "dtype")->done, "float32");
    assert_int_equal(x.r.activations, CPU_ACTIVATIONS_INT8);
    assert_string_equal(row_of(&x.s, "cpu-activations")->done, "int8");
    assert_int_equal(x.r.dense_quant, DENSE_QUANT_NONE);
    assert_string_equal(row_of(&x.s, "dense-quant")->done, "none");
}

static void test_dtypes(void **state)
{
    (void)state;
    struct model_config c = small_config();
    c.ssm_dtype = DTYPE_BF16;
    struct model_flags f = {0};
    model_flags_defaults(&f);
    f.dtype = "half";
    f.kv_cache_dtype = "fp8_e4m3";
    f.cpu_activations = "bf16";
    f.dense_quant = "int8";
    struct resolved x = resolve(&f, &c);
    assert_int_equal(x.r.compute, DTYPE_F16);
    assert_int_equal(x.r.kv, DTYPE_F8_E4M3);
    assert_int_equal(x.r.recurrent, DTYPE_BF16);
    assert_string_equal(row_of(&x.s, "conv-state-dtype")->done, "float16");
    assert_int_equal(x.r.activations, CPU_ACTIVATIONS_BF16);
    assert_string_equal(row_of(&x.s, "cpu-activations")->done, "bf16");
    assert_int_equal(x.r.dense_quant, DENSE_QUANT_INT8);
    f.cpu_activations = "auto";
    x = resolve(&f, &c);
    assert_int_equal(x.r.activations, CPU_ACTIVATIONS_F32);
    f.kv_cache_dtype = "auto";
    f.dtype = "bfloat16";
    x = resolve(&f, &c);
    assert_int_equal(x.r.kv, DTYPE_BF16);
}

static void test_sizes(void **state)
{
    (void)state;
    struct model_config c = small_config();
    struct model_flags f = {0};
    model_flags_defaults(&f);

    f.max_total_tokens = 4096; /* the pool bounds the context */
    struct resolved x = resolve(&f, &c);
    assert_int_equal(x.r.context_length, 4096);
    assert_non_null(strstr(row_of(&x.s, "context-length")->why, "KV pool"));

    f.context_length = 5000;
    x = resolve(&f, &c);
    assert_int_equal(x.rc, ERR_USAGE);
    assert_non_null(strstr(x.err.text, "5000"));
    assert_non_null(strstr(x.err.text, "4096"));

    f.max_total_tokens = 0;
    f.context_length = 8193;
    x = resolve(&f, &c);
    assert_int_equal(x.rc, ERR_USAGE);
    assert_non_null(strstr(x.err.text, "8193"));
    assert_non_null(strstr(x.err.text, "8192"));

    c.max_positions = 262144; /* a long context alone makes the pool large enough */
    f.context_length = 100000;
    x = resolve(&f, &c);
    assert_int_equal(x.rc, OK);
    assert_int_equal(x.r.max_total_tokens, 100000);

    f.context_length = 0; /* by default the pool bounds it */
    x = resolve(&f, &c);
    assert_int_equal(x.r.context_length, 65536);

    f.context_length = 100; /* a pool beyond running x context is never used */
    f.max_running_requests = 2;
    x = resolve(&f, &c);
    assert_int_equal(x.r.max_total_tokens, 200);
    assert_int_equal(x.r.chunk_tokens, 128); /* and no prompt is longer than that */
}

static void test_chunks(void **state)
{
    (void)state;
    struct model_config c = small_config();
    struct model_flags f = {0};
    model_flags_defaults(&f);
    f.chunked_prefill_size = 100;
    struct resolved x = resolve(&f, &c);
    assert_int_equal(x.rc, ERR_USAGE);
    assert_non_null(strstr(x.err.text, "100 is not a multiple of 64; 128 is"));

    f.chunked_prefill_size = 128;
    f.max_prefill_tokens = 64;
    x = resolve(&f, &c);
    assert_int_equal(x.r.chunk_tokens, 128);
    assert_int_equal(x.r.max_prefill_tokens, 128);
    f.max_prefill_tokens = 1000;
    x = resolve(&f, &c);
    assert_int_equal(x.r.max_prefill_tokens, 1000);
    assert_int_equal(x.r.rows_max, 1032);

    f.chunked_prefill_size = -1;
    f.max_prefill_tokens = 0;
    x = resolve(&f, &c);
    assert_int_equal(x.r.chunk_tokens, 0);
    assert_int_equal(x.r.max_prefill_tokens, 8192);
}

static void test_quantization(void **state)
{
    (void)state;
    static const struct {
        const char *asked, *stored;
        bool ok;
    } cases[] = {
        {NULL, NULL, true},          {NULL, "gptq", true},       {"gptq_marlin", "gptq", true},
        {"gptq-int4", "gptq", true}, {"gptq", "gptq", true},     {"marlin", "gptq", true},
        {"awq", "gptq", false},      {"gptq", NULL, false},      {"unquant", NULL, true},
        {"none", NULL, true},        {"unquant", "gptq", false}, {"fp8", "fp8", true},
        {"gptq", "awq", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct settings s = {0};
        struct error err = {0};
        enum status rc = quantization_check(cases[i].asked, cases[i].stored, &s, &err);
        if ((rc == OK) != cases[i].ok) {
            fail_msg("%s / %s", cases[i].asked, cases[i].stored);
        }
        if (rc != OK) { /* both names */
            assert_non_null(strstr(err.text, cases[i].asked));
            assert_non_null(strstr(err.text, cases[i].stored ? cases[i].stored : "not quantised"));
        }
    }
}

static void test_table(void **state)
{
    (void)state;
    struct settings s = {0};
    settings_add(&s, "max-total-tokens", "", "default", "%d", 65536);
    settings_add(&s, "dtype", "auto", NULL, "float32");
    settings_add(&s, "odd", "1", "because", "2");
    settings_warn(&s);
    struct json_object *o = settings_json(&s);
    assert_non_null(o);
    assert_true(json_object_is_type(json_get(o, "max_total_tokens"), json_type_int));
    assert_int_equal(json_object_get_int64(json_get(o, "max_total_tokens")), 65536);
    assert_string_equal(json_object_get_string(json_get(o, "dtype")), "float32");
    json_object_put(o);

    for (int quiet = 0; quiet < 2; quiet++) {
        int fds[2];
        char text[2048] = "";
        assert_int_equal(pipe(fds), 0);
        struct log log = {.fd = fds[1], .level = LOG_INFO};
        settings_print(&s, &log, quiet);
        close(fds[1]);
        assert_true(read(fds[0], text, sizeof text - 1) > 0);
        close(fds[0]);
        assert_non_null(strstr(text, "because")); /* a change is never silent */
        assert_int_equal(strstr(text, "float32") == NULL, quiet);
    }
    for (int i = 0; i < 2 * SETTINGS_MAX; i++) {
        settings_add(&s, "more", NULL, NULL, "x");
    }
    assert_int_equal(s.n, SETTINGS_MAX);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_memory(void **state)
{
    (void)state;
    char dir[] = "/tmp/spillway-memory-XXXXXX", meminfo[64];
    assert_non_null(mkdtemp(dir));
    snprintf(meminfo, sizeof meminfo, "%s/meminfo", dir);
    assert_true(memory_available(meminfo, dir) == SIZE_MAX);
    write_file(dir, "meminfo", "MemTotal: 9 kB\nMemAvailable:    2048 kB\n");
    assert_true(memory_available(meminfo, dir) == 2048 * 1024);
    write_file(dir, "memory.max", "max\n");
    assert_true(memory_available(meminfo, dir) == 2048 * 1024);
    write_file(dir, "memory.max", "1048576\n");
    write_file(dir, "memory.current", "600000\n");
    write_file(dir, "memory.stat", "anon 100000\nfile 500000\nfile_mapped 7\n");
    assert_true(memory_available(meminfo, dir) == 1048576 - 100000);
    write_file(dir, "memory.current", "9000000\n"); /* over the limit: nothing is left */
    assert_true(memory_available(meminfo, dir) == 0);
    static const char *const names[] = {"meminfo", "memory.max", "memory.current", "memory.stat"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void test_memory_plan(void **state)
{
    (void)state;
    struct model_config c = small_config();
    struct state_budget budget = {.n_live = 3, .n_tokens = 1024, .context_max = 1024};
    struct memory_plan p;
    struct error err = {0};
    assert_int_equal(
        memory_plan_make(&p, &c, 1000, &budget, DTYPE_F32, DTYPE_F32, DTYPE_F32, 64, 2, &err), OK);
    /* 2 attention layers x 2 (k, v) x 2 heads x 64 x 4 bytes a token */
    assert_in_range(p.kv_bytes, 1024 * 2 * 2 * 2 * 64 * 4, 2 * 1024 * 2 * 2 * 2 * 64 * 4);
    /* 6 layers x 4 heads x 64 x 64 x 4 bytes a sequence */
    assert_true(p.state_bytes >= (size_t)3 * 6 * 4 * 64 * 64 * 4);
    assert_true(p.total_bytes == p.weight_bytes + p.state_bytes + p.kv_bytes + p.scratch_bytes);
    assert_int_equal(memory_check(&p, p.total_bytes, &err), OK);
    assert_int_equal(memory_check(&p, p.total_bytes - 1, &err), ERR_NO_MEMORY);
    assert_non_null(strstr(err.text, "are available"));
    budget.n_tokens = SIZE_MAX / 2;
    assert_int_equal(
        memory_plan_make(&p, &c, 1000, &budget, DTYPE_F32, DTYPE_F32, DTYPE_F32, 64, 2, &err),
        ERR_NO_MEMORY);
}

/* The serve tables together, as cmd_serve parses them. */
static enum status parse_serve(struct model_flags *m, struct serve_flags *s, struct flag_result *r,
                               char *line, struct error *err)
{
    static const struct command serve = {.name = "serve", .summary = "", .examples = ""};
    const struct flag_group groups[] = {
        {"Model", model_flag_table, model_flag_count, m},
        {"Server", serve_flag_table, serve_flag_count, s},
        compat_groups[0],
        compat_groups[1],
    };
    char *argv[64], *save = NULL;
    int argc = 0;
    for (char *p = strtok_r(line, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        argv[argc++] = p;
    }
    *m = (struct model_flags){0};
    *s = (struct serve_flags){0};
    model_flags_defaults(m);
    serve_flags_defaults(s);
    enum status rc = flags_parse(r, &serve, groups, 4, 1, argc, argv, NULL, err);
    if (rc == OK) {
        rc = compat_check(r, err);
        flags_release(r);
    }
    return rc;
}

static void test_seed_command(void **state)
{
    (void)state;
    struct model_flags m;
    struct serve_flags s;
    struct flag_result r;
    struct error err = {0};
    char line[] = "--model-path x --quantization gptq_marlin --dtype float16 --attention-backend "
                  "triton --cpu-offload-gb 12 --offload-group-size 1 --mem-fraction-static 0.80 "
                  "--kv-cache-dtype fp8_e4m3 --disable-cuda-graph --skip-server-warmup "
                  "--trust-remote-code --port 30000";
    assert_int_equal(parse_serve(&m, &s, &r, line, &err), OK);
    assert_string_equal(m.model_path, "x");
    assert_string_equal(m.quantization, "gptq_marlin");
    assert_string_equal(m.dtype, "float16");
    assert_string_equal(m.kv_cache_dtype, "fp8_e4m3");
    assert_int_equal(s.port, 30000);
    size_t without_effect = 0;
    for (size_t i = 0; i < r.n_seen; i++) {
        without_effect += r.seen[i]->no_effect ? 1 : 0;
    }
    assert_int_equal(r.n_seen, 12);
    assert_int_equal(without_effect, 3); /* each of these prints its line */
    assert_string_equal(m.cpu_offload_gb, "12");
    assert_int_equal(m.offload_group_size, 1);
    assert_true(m.mem_fraction_static == 0.80);
    assert_true(m.disable_cuda_graph);
}

static void test_compat(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool ok;
    } cases[] = {
        {"--tp-size 1", true},
        {"--tp 2", false},
        {"--tensor-parallel-size 2", false},
        {"--dp-size 1 --pp-size 1 --ep-size 1 --nnodes 1 --node-rank 0", true},
        {"--pp-size 2", false},
        {"--lora-paths a b", false},
        {"--enable-lora", false},
        {"--device xpu", false},
        {"--device cuda", true},
        {"--device cpu", true},
        {"--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
         "--speculative-num-draft-tokens 4",
         true},
        {"--mamba-scheduler-strategy extra_buffer --reasoning-parser qwen3 --tool-call-parser "
         "qwen3_coder",
         true},
        {"--reasoning-parser glm45", false},
        {"--cuda-graph-bs 1 2 4 --cuda-graph-max-bs 8", true},
        {"--mem-fraction-static banana", false},
        {"--load-format dummy", false},
        {"--ssl-keyfile k", false},
        {"--quantization-param-path f", false},
        {"--enable-metrics --kt-method AMXINT4 --page-size 16 --schedule-policy lpm", true},
        {"--preferred-sampling-params {}", true},
        {"--preferred-sampling-params {\"top_k\":1}", false},
        {"--random-seed 42 --served-model-name q --max-queued-requests 3", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_flags m;
        struct serve_flags s;
        struct flag_result r;
        struct error err = {0};
        char line[512];
        snprintf(line, sizeof line, "%s", cases[i].line);
        enum status rc = parse_serve(&m, &s, &r, line, &err);
        if (cases[i].ok != (rc == OK) || (rc != OK && rc != ERR_USAGE)) {
            fail_msg("'%s': %s", cases[i].line, err.text);
        }
    }
}

/* Every name once; every flag shown or explained. */
static void test_tables(void **state)
{
    (void)state;
    const struct flag_group groups[] = {
        {"Model", model_flag_table, model_flag_count, NULL},
        {"Server", serve_flag_table, serve_flag_count, NULL},
        compat_groups[0],
        compat_groups[1],
    };
    const char *names[FLAGS_MAX];
    size_t n = 0;
    for (size_t g = 0; g < 4; g++) {
        for (size_t i = 0; i < groups[g].n_flags; i++) {
            const struct flag *f = &groups[g].flags[i];
            assert_true(f->help || f->no_effect);
            assert_true(f->kind != FLAG_CHOICE || f->choices);
            names[n++] = f->name;
            if (f->aliases) {
                assert_true(strlen(f->aliases) < 64);
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            assert_string_not_equal(names[i], names[j]);
        }
    }
}

static void test_server_options(void **state)
{
    (void)state;
    struct serve_flags f = {0};
    struct server_options o;
    struct settings s = {0};
    struct error err = {0};
    char *key = NULL, path[] = "/tmp/spillway-key-XXXXXX";
    serve_flags_defaults(&f);
    assert_int_equal(serve_flags_resolve(&o, &key, &f, "models/x", &s, NULL, &err), OK);
    assert_string_equal(o.served_name, "models/x");
    assert_int_equal(o.port, 30000);
    assert_null(o.api_key);
    assert_int_equal(o.reasoning_parser, PARSER_AUTO);

    int fd = mkstemp(path);
    assert_int_equal(write(fd, "secret\nrest\n", 12), 12);
    close(fd);
    f.api_key_file = path;
    f.reasoning_parser = "none";
    f.tool_call_parser = "qwen3_coder";
    f.chat_template_kwargs = "{\"enable_thinking\": false}";
    assert_int_equal(serve_flags_resolve(&o, &key, &f, "x", &s, NULL, &err), OK);
    assert_string_equal(o.api_key, "secret");
    assert_int_equal(o.reasoning_parser, PARSER_NONE);
    assert_int_equal(o.tool_parser, PARSER_QWEN);
    assert_non_null(json_get(o.default_template_kwargs, "enable_thinking"));
    json_object_put(o.default_template_kwargs);
    free(key);

    f.api_key = "both";
    assert_int_equal(serve_flags_resolve(&o, &key, &f, "x", &s, NULL, &err), ERR_USAGE);
    f.api_key = NULL;
    f.chat_template_kwargs = "[1]";
    assert_int_equal(serve_flags_resolve(&o, &key, &f, "x", &s, NULL, &err), ERR_USAGE);
    free(key);
    unlink(path);
    f.chat_template_kwargs = NULL;
    assert_int_equal(serve_flags_resolve(&o, &key, &f, "x", &s, NULL, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "--api-key-file"));
}

static void test_hub_cache(void **state)
{
    (void)state;
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                        "XDG_CACHE_HOME", "HOME"};
    static const char *const want[] = {"/a", "/b", "/c/hub", "/d/huggingface/hub",
                                       "/e/.cache/huggingface/hub"};
    char value[3] = "/a";
    for (size_t i = 0; i < 5; i++, value[1]++) {
        setenv(names[i], value, 1);
    }
    const char *const *dirs = hub_cache_dirs();
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(dirs[i], want[i]);
    }
    assert_null(dirs[5]);
    setenv("HF_HUB_CACHE", "", 1);
    unsetenv("HF_HOME");
    dirs = hub_cache_dirs();
    assert_string_equal(dirs[0], "/b");
    assert_string_equal(dirs[1], "/d/huggingface/hub");
    assert_null(dirs[3]);
    for (size_t i = 0; i < 5; i++) {
        unsetenv(names[i]);
    }
    assert_null(hub_cache_dirs()[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),     cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_quantization), cmocka_unit_test(test_table),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_memory_plan),
        cmocka_unit_test(test_seed_command), cmocka_unit_test(test_compat),
        cmocka_unit_test(test_tables),       cmocka_unit_test(test_server_options),
        cmocka_unit_test(test_hub_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
