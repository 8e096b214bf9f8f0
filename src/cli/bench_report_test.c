/* bench_report_test.c - table, JSON and picture of a made-up result.
 *
 * Place: cli, cmocka. The picture is read by a small parser that knows as much XML as SVG writers may
 *        get wrong: nesting, quotes, stray markup, numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "cli/bench_report.h"

static struct bench_row made_row(enum bench_kind kind, size_t n_threads, double tok_s)
{
    return (struct bench_row){.kind = kind,
                              .n_threads = n_threads,
                              .n_tokens = 512,
                              .n_seqs = kind == BENCH_PREFILL ? 1 : 4,
                              .depth = kind == BENCH_PREFILL ? 0 : 1024,
                              .tok_s = {tok_s - 2, tok_s - 1, tok_s, tok_s + 1, tok_s + 2},
                              .cost = {.bytes = {1e9, 5e8, 2e7, 1e8}, .flop = 6e9},
                              .n_touched = 7.5,
                              .bound_tok_s = 2 * tok_s,
                              .is_bound_by_memory = kind == BENCH_DECODE};
}

struct made {
    struct bench_plan plan;
    struct bench_result result;
    struct op_profile profile;
    struct bench_row rows[3];
    struct bench_report report;
};

static void make(struct made *m)
{
    *m = (struct made){.plan = {.repeat = 5, .decode_tokens = 32, .chunk_tokens = 2048},
                       .rows = {made_row(BENCH_PREFILL, 1, 300), made_row(BENCH_DECODE, 1, 20),
                                made_row(BENCH_DECODE, 2, 30)}};
    m->profile = (struct op_profile){
        .rows = {{.name = "lm_head", .kind = OP_LINEAR, .n_calls = 2, .ns = 600, .bytes = 1200}},
        .n_rows = 1,
        .step_ns = 1000,
        .n_steps = 2,
        .n_tokens = 2};
    m->plan.profile = &m->profile;
    m->result = (struct bench_result){
        .rows = m->rows,
        .n_rows = 3,
        .bounds = {{1, {.memory_bytes_s = 1e10, .f32_flop_s = 1e11, .int8_op_s = 4e11}},
                   {2, {.memory_bytes_s = 2e10, .f32_flop_s = 2e11, .int8_op_s = 8e11}}},
        .n_bounds = 2,
        .cache_bytes = 1 << 25};
    m->report = (struct bench_report){.plan = &m->plan,
                                      .result = &m->result,
                                      .model_path = "models/<odd> & \"quoted\"\x01\xff",
                                      .load_s = 2,
                                      .load_average = 0.25,
                                      .checkpoint_bytes = 3000000000,
                                      .weight_bytes = 4000000000,
                                      .dtype = "float32",
                                      .activations = "int8",
                                      .dense_quant = "none",
                                      .routing = "model",
                                      .isa = "avx2",
                                      .cpu = "A Processor",
                                      .features = "avx2"};
}

/* ---- JSON ---- */

static double number(struct json_object *o, const char *key)
{
    double v = NAN;

    assert_int_equal(json_get_double(&v, o, key, ERR_FORMAT, NULL), OK);
    return v;
}

static struct json_object *parsed(const struct bench_report *r)
{
    struct json_object *o = NULL;
    struct error err = {0};
    struct buf text;

    buf_init(&text);
    assert_int_equal(bench_report_json(&text, r, &err), OK);
    assert_int_equal(text.data[text.len - 1], '\n');
    if (json_parse(&o, text.data, text.len, &err) != OK) {
        fail_msg("%s in %s", err.text, text.data);
    }
    buf_release(&text);
    return o;
}

static void test_json(void **state)
{
    struct made m;
    struct json_object *root, *cases, *row;
    const char *text = NULL;
    (void)state;

    make(&m);
    root = parsed(&m.report);
    cases = json_get(root, "cases");
    assert_int_equal(json_object_array_length(cases), 3);
    row = json_object_array_get_idx(cases, 2);
    assert_true(number(row, "tok_s") == 30 && number(row, "least") == 28);
    assert_true(number(row, "threads") == 2 && number(row, "batch") == 4);
    assert_true(number(row, "depth") == 1024);
    assert_true(number(row, "bytes_per_token") == 1.62e9);
    assert_true(number(json_get(row, "bytes_by_class"), "kv") == 2e7);
    assert_true(number(row, "reached") == 0.5);
    assert_int_equal(json_get_string(&text, row, "bound_by", ERR_FORMAT, NULL), OK);
    assert_string_equal(text, "memory");
    assert_int_equal(json_object_array_length(json_get(root, "bounds")), 2);
    assert_true(number(root, "load_gb_s") == 1.5);
    assert_true(number(root, "load_average_before") == 0.25);
    row = json_object_array_get_idx(json_get(root, "profile"), 0);
    assert_true(number(row, "share") == 0.6 && number(row, "gb_s") == 2);
    json_object_put(root);
}

static void test_json_without_numbers(void **state)
{
    struct made m;
    struct json_object *root, *row;
    (void)state;

    make(&m);
    m.rows[0].bound_tok_s = INFINITY;
    m.rows[0].tok_s.median = NAN;
    root = parsed(&m.report);
    row = json_object_array_get_idx(json_get(root, "cases"), 0);
    assert_true(json_has(row, "bound_tok_s") && !json_get(row, "bound_tok_s"));
    assert_true(json_has(row, "tok_s") && !json_get(row, "tok_s"));
    json_object_put(root);
}

/* ---- table ---- */

static void test_table(void **state)
{
    static const char *const wanted[] = {
        "300.00", "50.0 %",        "decode 4 x, depth 1024", "prefill 512", "memory 20.0 GB/s",
        "1620.0", "dense weights", "routing: model",         "arithmetic"};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct made m;
    (void)state;

    assert_non_null(out);
    make(&m);
    bench_report_table(out, &m.report);
    op_profile_sort(&m.profile);
    op_profile_print(out, &m.profile);
    fclose(out);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!strstr(text, wanted[i])) {
            fail_msg("no '%s' in\n%s", wanted[i], text);
        }
    }
    assert_non_null(strstr(text, "lm_head"));
    assert_non_null(strstr(text, "60.0 %"));
    free(text);
}

/* ---- picture ---- */

enum { DEPTH_MAX = 16, NAME_BYTES = 32 };

struct xml {
    const char *at;
    char open[DEPTH_MAX][NAME_BYTES];
    size_t depth, n_elements, n_rects;
};

static size_t read_name(char *out, const char *at)
{
    size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyzBA0123456789-");

    assert_in_range(n, 1, NAME_BYTES - 1);
    memcpy(out, at, n);
    out[n] = '\0';
    return n;
}

static void check_entity(const char *at)
{
    static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;"};

    for (size_t i = 0; i < 4; i++) {
        if (strncmp(at, known[i], strlen(known[i])) == 0) {
            return;
        }
    }
    fail_msg("stray & at '%.20s'", at);
}

/* name="value" pairs up to the end of the tag. Sizes and places are numbers that are not negative. */
static void read_attributes(struct xml *x)
{
    static const char *const numbers[] = {"width", "height", "x", "y", "x1", "x2", "y1", "y2"};

    while (*x->at == ' ') {
        char name[NAME_BYTES];

        x->at += 1 + read_name(name, x->at + 1);
        assert_int_equal(strncmp(x->at, "=\"", 2), 0);
        x->at += 2;
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            if (strcmp(name, numbers[i]) == 0) {
                char *after;
                assert_true(strtod(x->at, &after) >= 0);
                assert_int_equal(*after, '"');
            }
        }
        x->at += strcspn(x->at, "\"<");
        assert_int_equal(*x->at++, '"');
    }
}

static void read_tag(struct xml *x)
{
    char name[NAME_BYTES];

    x->at++;
    if (*x->at == '/') {
        x->at += 1 + read_name(name, x->at + 1);
        assert_true(x->depth > 0);
        assert_string_equal(name, x->open[--x->depth]);
        assert_true(*x->at++ == '>');
        return;
    }
    x->at += read_name(name, x->at);
    x->n_elements++;
    x->n_rects += strcmp(name, "rect") == 0;
    read_attributes(x);
    if (*x->at == '/') {
        x->at++;
    } else {
        assert_true(x->depth < DEPTH_MAX);
        memcpy(x->open[x->depth++], name, NAME_BYTES);
    }
    assert_true(*x->at++ == '>');
}

static struct xml check_xml(const char *text)
{
    struct xml x = {.at = text};

    assert_int_equal(strncmp(x.at, "<?xml", 5), 0);
    x.at = strstr(x.at, "?>");
    assert_non_null(x.at);
    x.at += 2;
    while (*x.at) {
        if (*x.at == '<') {
            read_tag(&x);
        } else {
            if (*x.at == '&') {
                check_entity(x.at);
            }
            assert_true(*x.at != '>' && ((unsigned char)*x.at >= 0x20 || *x.at == '\n'));
            x.at++;
        }
    }
    assert_int_equal(x.depth, 0);
    return x;
}

static void test_picture(void **state)
{
    struct made m;
    struct buf text;
    struct xml x;
    (void)state;

    make(&m);
    buf_init(&text);
    assert_int_equal(bench_report_svg(&text, &m.report, NULL), OK);
    x = check_xml(buf_cstr(&text));
    /* background, two keys, and for each case a bound and what was reached */
    assert_int_equal(x.n_rects, 3 + 2 * 3);
    assert_non_null(strstr(text.data, "&lt;odd&gt; &amp; &quot;quoted&quot;??"));
    assert_non_null(strstr(text.data, "decode 4 x, depth 1024, 2 thr"));
    assert_null(strstr(text.data, "nan"));
    assert_null(strstr(text.data, "inf"));
    buf_release(&text);
}

/* Results that no run should give still make a picture, and an empty result makes one without bars. */
static void test_picture_of_odd_numbers(void **state)
{
    struct made m;
    struct buf text;
    (void)state;

    make(&m);
    m.rows[0].bound_tok_s = INFINITY;
    m.rows[1].bound_tok_s = 0;
    m.rows[2].bound_tok_s = NAN;
    buf_init(&text);
    assert_int_equal(bench_report_svg(&text, &m.report, NULL), OK);
    check_xml(buf_cstr(&text));
    assert_null(strstr(text.data, "nan"));
    assert_null(strstr(text.data, "inf"));
    buf_clear(&text);
    m.result.n_rows = 0;
    assert_int_equal(bench_report_svg(&text, &m.report, NULL), OK);
    assert_int_equal(check_xml(buf_cstr(&text)).n_rects, 3);
    buf_release(&text);
}

static void test_no_room(void **state)
{
    struct made m;
    struct buf text;
    struct error err;
    (void)state;

    make(&m);
    buf_init_limited(&text, 100);
    assert_int_equal(bench_report_svg(&text, &m.report, &err), ERR_NO_MEMORY);
    buf_clear(&text);
    assert_int_equal(bench_report_json(&text, &m.report, &err), ERR_NO_MEMORY);
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_without_numbers),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_picture),
        cmocka_unit_test(test_picture_of_odd_numbers),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests_name("bench_report", tests, NULL, NULL);
}
