/* flags_test.c - tables of good and bad command lines, environment, YAML. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/flags.h"

struct options {
    const char *model, *dtype;
    bool quiet;
    size_t tokens, port;
    int64_t chunk;
    double share;
    struct flag_list sizes;
};

static const struct flag table[] = {
    {.name = "model-path",
     .aliases = "model,m-path",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct options, model),
     .help = "the model"},
    {.name = "dtype",
     .kind = FLAG_CHOICE,
     .offset = FLAG_OFFSET(struct options, dtype),
     .choices = "auto|float16|float32",
     .help = "activations"},
    {.name = "quiet", .kind = FLAG_BOOL, .offset = FLAG_OFFSET(struct options, quiet), .help = "-"},
    {.name = "max-tokens",
     .kind = FLAG_SIZE,
     .offset = FLAG_OFFSET(struct options, tokens),
     .help = "tokens"},
    {.name = "port",
     .kind = FLAG_SIZE,
     .offset = FLAG_OFFSET(struct options, port),
     .help = "port",
     .max = 65535},
    {.name = "chunk",
     .kind = FLAG_INT,
     .offset = FLAG_OFFSET(struct options, chunk),
     .help = "chunk"},
    {.name = "share",
     .kind = FLAG_DOUBLE,
     .offset = FLAG_OFFSET(struct options, share),
     .help = "share",
     .min = 0,
     .max = 1},
    {.name = "sizes",
     .kind = FLAG_LIST,
     .offset = FLAG_OFFSET(struct options, sizes),
     .help = "sizes"},
    {.name = "backend", .kind = FLAG_STRING, .no_effect = "there is one kernel"},
};

static int run_nothing(int argc, char **argv, struct log *log)
{
    (void)argc;
    (void)argv;
    (void)log;
    return 0;
}

static const struct command command = {
    .name = "try", .summary = "a test", .examples = "spillway try\n", .run = run_nothing};

struct fixture {
    struct options o;
    struct flag_result r;
    struct error err;
    char line[512];
    char *argv[32];
    enum status rc;
};

/* Parses `line`, split at single blanks ('~' stands for a blank inside an argument). */
static struct fixture *parse(const char *line)
{
    struct fixture *f = calloc(1, sizeof *f);
    int argc = 0;
    char *save = NULL;
    assert_non_null(f);
    snprintf(f->line, sizeof f->line, "%s", line);
    for (char *p = strtok_r(f->line, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        for (char *c = p; *c; c++) {
            *c = *c == '~' ? ' ' : *c;
        }
        f->argv[argc++] = p;
    }
    struct flag_group groups[] = {{"Test", table, sizeof table / sizeof table[0], &f->o}};
    f->rc = flags_parse(&f->r, &command, groups, 1, 2, argc, f->argv, NULL, &f->err);
    return f;
}

static void drop(struct fixture *f)
{
    flags_release(&f->r);
    free(f);
}

static void test_good(void **state)
{
    (void)state;
    struct fixture *f = parse("a --model-path x --max-tokens=1.5K b --quiet --chunk -1 --share .25 "
                              "--dtype float16");
    assert_int_equal(f->rc, OK);
    assert_string_equal(f->o.model, "x");
    assert_int_equal(f->o.tokens, 1500);
    assert_int_equal(f->o.chunk, -1);
    assert_true(f->o.quiet);
    assert_true(f->o.share == 0.25);
    assert_string_equal(f->o.dtype, "float16");
    assert_int_equal(f->r.n_positional, 2);
    assert_string_equal(f->r.positional[0], "a");
    assert_string_equal(f->r.positional[1], "b");
    assert_true(flags_given(&f->r, "chunk"));
    assert_false(flags_given(&f->r, "port"));
    assert_string_equal(flags_text(&f->r, "max-tokens"), "1.5K");
    drop(f);
}

static void test_names(void **state)
{
    (void)state;
    struct fixture *f = parse("--model one --model-p two --por 7 --po=8");
    assert_int_equal(f->rc, OK);
    assert_string_equal(f->o.model, "two"); /* last one wins */
    assert_int_equal(f->o.port, 8);
    assert_int_equal(f->r.n_seen, 2);
    drop(f);
    f = parse("--m-pa three"); /* the prefix of an alias */
    assert_string_equal(f->o.model, "three");
    drop(f);
    f = parse("--m 1");
    assert_int_equal(f->rc, ERR_USAGE);
    assert_non_null(strstr(f->err.text, "--max-tokens"));
    assert_non_null(strstr(f->err.text, "--model-path"));
    drop(f);
}

static void test_values_with_dashes(void **state)
{
    (void)state;
    struct fixture *f = parse("--model=-x --chunk -2 -- --quiet -x");
    assert_int_equal(f->rc, OK);
    assert_string_equal(f->o.model, "-x");
    assert_int_equal(f->o.chunk, -2);
    assert_false(f->o.quiet);
    assert_int_equal(f->r.n_positional, 2);
    assert_string_equal(f->r.positional[1], "-x");
    drop(f);
    f = parse("--model -~with~blanks -"); /* text with blanks, and "-" for standard input */
    assert_int_equal(f->rc, OK);
    assert_string_equal(f->o.model, "- with blanks");
    assert_string_equal(f->r.positional[0], "-");
    drop(f);
}

static void test_lists(void **state)
{
    (void)state;
    struct fixture *f = parse("--sizes 1 2 -4 --quiet pos --sizes=9 --sizes 7 8");
    assert_int_equal(f->rc, OK);
    assert_int_equal(f->o.sizes.n, 2);
    assert_string_equal(f->o.sizes.items[1], "8");
    assert_int_equal(f->r.n_positional, 1);
    assert_string_equal(f->r.positional[0], "pos");
    assert_string_equal(flags_text(&f->r, "sizes"), "7 8");
    drop(f);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"--prot 1", "did you mean '--port'?"},
        {"--max_tokens 1", "did you mean '--max-tokens'?"},
        {"--modle x", "did you mean '--model'?"},
        {"--zzzzzzzz", "'spillway try --help' lists all"},
        {"-q", "flags begin with two dashes"},
        {"--quiet=1", "takes no value"},
        {"--port", "needs a value"},
        {"--port --quiet", "needs a value"},
        {"--sizes --quiet", "needs a value"},
        {"--port 65536", "outside 0..65535"},
        {"--port -1", "negative"},
        {"--port 1x", "not a number"},
        {"--port 1.5", "not a whole number"},
        {"--port 1m", "not a number"},
        {"--port 1.5Ki", "not a number"},
        {"--max-tokens 99999999999999999999", "too large"},
        {"--max-tokens 99999999T", "too large"},
        {"--chunk --1", "needs a value"},
        {"--share 1.01", "outside 0..1"},
        {"--share nan", "not a number"},
        {"--share 0x1", "not a number"},
        {"--share=", "not a number"},
        {"--dtype float61", "did you mean 'float16'?"},
        {"--dtype x", "not one of auto|float16|float32"},
        {"a b c", "unexpected argument 'c'"},
        {"--config a --config b", "may be given once"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture *f = parse(cases[i].line);
        if (f->rc != ERR_USAGE || !strstr(f->err.text, cases[i].says)) {
            fail_msg("'%s' gives %d: %s", cases[i].line, (int)f->rc, f->err.text);
        }
        drop(f);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t value;
    } cases[] = {{"0", 0},
                 {"+7", 7},
                 {"16777217", 16777217},
                 {"18446744073709551615", SIZE_MAX},
                 {"4k", 4000},
                 {"4K", 4000},
                 {"1.5M", 1500000},
                 {"2G", 2000000000},
                 {"3Ki", 3072},
                 {"1Mi", 1 << 20},
                 {"2Gi", (size_t)2 << 30},
                 {"1Ti", (size_t)1 << 40},
                 {".5K", 500},
                 {"1.0", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t v = 1;
        struct error err = {0};
        assert_int_equal(flag_read_size(&v, cases[i].text, "--x", &err), OK);
        assert_true(v == cases[i].value);
    }
    static const char *const bad[] = {"",   "-",  "K",   "1KK",   "0x10",
                                      "1 ", " 1", "1e3", "1.2.3", "Ki"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t v = 1;
        int64_t n = 1;
        assert_int_equal(flag_read_size(&v, bad[i], "--x", NULL), ERR_USAGE);
        assert_int_equal(flag_read_int(&n, bad[i], "--x", NULL), ERR_USAGE);
        assert_true(v == 1 && n == 1);
    }
    int64_t n = 0;
    assert_int_equal(flag_read_int(&n, "-1.5K", "--x", NULL), OK);
    assert_int_equal(n, -1500);
}

static void test_environment(void **state)
{
    (void)state;
    setenv("SPILLWAY_MAX_TOKENS", "3Ki", 1);
    setenv("SPILLWAY_PORT", "80", 1);
    setenv("SPILLWAY_QUIET", "true", 1);
    setenv("SPILLWAY_MODEL", "from-env", 1);
    setenv("SPILLWAY_SIZES", "1, 2 3", 1);
    setenv("SPILLWAY_DTYPE", "", 1);
    struct fixture *f = parse("--port 81");
    assert_int_equal(f->rc, OK);
    assert_int_equal(f->o.tokens, 3072);
    assert_int_equal(f->o.port, 81);
    assert_true(f->o.quiet);
    assert_string_equal(f->o.model, "from-env");
    assert_int_equal(f->o.sizes.n, 3);
    assert_string_equal(f->o.sizes.items[2], "3");
    assert_false(flags_given(&f->r, "dtype"));
    assert_true(flags_typed(&f->r, "port"));
    assert_true(flags_given(&f->r, "quiet") && !flags_typed(&f->r, "quiet"));
    drop(f);

    setenv("SPILLWAY_QUIET", "no", 1);
    f = parse("");
    assert_int_equal(f->rc, OK);
    assert_false(f->o.quiet);
    drop(f);

    setenv("SPILLWAY_PORT", "tcp://10.0.0.1:80", 1);
    f = parse("");
    assert_int_equal(f->rc, ERR_USAGE);
    assert_non_null(strstr(f->err.text, "SPILLWAY_PORT"));
    assert_non_null(strstr(f->err.text, "Kubernetes"));
    drop(f);
    static const char *const names[] = {"MAX_TOKENS", "PORT", "QUIET", "MODEL", "SIZES", "DTYPE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "SPILLWAY_%s", names[i]);
        unsetenv(name);
    }
}

/* Parses `line` with a config file of this content (the path is appended). */
static struct fixture *parse_yaml(const char *yaml, const char *line)
{
    char path[] = "/tmp/spillway-flags-XXXXXX", whole[600];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, yaml, strlen(yaml)), (ssize_t)strlen(yaml));
    close(fd);
    snprintf(whole, sizeof whole, "%s --config %s", line, path);
    struct fixture *f = parse(whole);
    unlink(path);
    return f;
}

static void test_config(void **state)
{
    (void)state;
    struct fixture *f = parse_yaml("# comment\nmodel_path: m\nmax-tokens: 2K\nquiet: true\n"
                                   "sizes: [1, 2]\nport: 5\ndtype: ~\n",
                                   "--port 6");
    assert_int_equal(f->rc, OK);
    assert_string_equal(f->o.model, "m");
    assert_int_equal(f->o.tokens, 2000);
    assert_true(f->o.quiet);
    assert_int_equal(f->o.sizes.n, 2);
    assert_int_equal(f->o.port, 6);
    assert_false(flags_given(&f->r, "dtype"));
    drop(f);
    f = parse_yaml("", "--port 6");
    assert_int_equal(f->rc, OK);
    drop(f);
    f = parse_yaml("quiet: false\n", "");
    assert_int_equal(f->rc, OK);
    assert_false(f->o.quiet);
    drop(f);
    static const struct {
        const char *yaml, *says;
    } cases[] = {{"port: 1\nprot: 2\n", "line 2: unknown key 'prot'; did you mean 'port'?"},
                 {"\n\nport: x\n", "line 3: --port: 'x' is not a number"},
                 {"port: 1\nport: 2\n", "line 2: 'port' stands twice"},
                 {"- port\n", "line 1: expected lines"},
                 {"port: {a: 1}\n", "line 1: 'port' must be one value"},
                 {"sizes: [[1]]\n", "line 1: 'sizes' must be one value"},
                 {"port: [1]\n", "line 1: 'port' must be one value"},
                 {"quiet: maybe\n", "neither true nor false"},
                 {"config: other\n", "cannot stand in the file"},
                 {"port: \"1\n", "line "},
                 {"model: \"a\\0b\"\n", "NUL"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f = parse_yaml(cases[i].yaml, "");
        assert_int_equal(f->rc, ERR_USAGE);
        if (!strstr(f->err.text, cases[i].says)) {
            fail_msg("'%s' says: %s", cases[i].yaml, f->err.text);
        }
        drop(f);
    }
    f = parse("--config /nonexistent/x.yaml");
    assert_int_equal(f->rc, ERR_USAGE);
    assert_non_null(strstr(f->err.text, "/nonexistent/x.yaml"));
    drop(f);
}

static void test_no_effect(void **state)
{
    (void)state;
    int fds[2];
    char text[512] = "";
    struct fixture *f = parse("--backend triton --port 3");
    assert_int_equal(f->rc, OK);
    assert_true(flags_given(&f->r, "backend"));
    assert_int_equal(pipe(fds), 0);
    struct log log = {.fd = fds[1], .level = LOG_INFO};
    flags_print_notes(&f->r, &log);
    close(fds[1]);
    assert_true(read(fds[0], text, sizeof text - 1) > 0);
    close(fds[0]);
    assert_non_null(
        strstr(text, "--backend triton: accepted, no effect here: there is one kernel"));
    assert_null(strstr(text, "port"));
    drop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_values_with_dashes),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
