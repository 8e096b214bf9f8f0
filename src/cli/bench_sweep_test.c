/* bench_sweep_test.c - bounds of overflowing experts, and a made-up sweep as table, JSON and picture.
 *
 * Place: cli, cmocka. No card is needed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "cli/bench_sweep.h"

static const struct bench_card card = {.machine = {.memory_bytes_s = 1000},
                                       .link = {.link_bytes_s = 50,
                                                .cpu_bytes_s = 140,
                                                .link_shared_bytes_s = 40,
                                                .cpu_shared_bytes_s = 60}};

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void test_bound(void **state)
{
    const struct op_cost cost = {.bytes = {[COST_DENSE] = 80, [COST_EXPERT] = 500, [COST_KV] = 20}};
    struct bench_misses m = {.overflows = true, .block_bytes = 10, .hits = 10};
    struct bench_overflow_bound b = bench_overflow_bound(&card, &cost, &m);

    (void)state;
    assert_true(near(b.card_s, 0.2) && b.miss_s == 0 && b.bound_s == b.card_s);
    assert_true(b.in_turn_s == b.card_s && strcmp(b.by, "card") == 0);
    m.fetched = 5; /* both engines: the shared rates, over all misses */
    m.cpu = 15;
    b = bench_overflow_bound(&card, &cost, &m);
    assert_true(near(b.card_s, 0.3) && near(b.miss_s, 2) && near(b.bound_s, 2));
    assert_true(near(b.in_turn_s, 2.3) && strcmp(b.by, "misses") == 0);
    m.cpu = 0; /* the link alone */
    b = bench_overflow_bound(&card, &cost, &m);
    assert_true(near(b.miss_s, 1));
    m = (struct bench_misses){.overflows = true, .block_bytes = 10, .cpu = 14};
    b = bench_overflow_bound(&card, &cost, &m);
    assert_true(near(b.miss_s, 1) && near(b.card_s, 0.1));
    m = (struct bench_misses){.overflows = true, .block_bytes = 10, .streamed = 1};
    b = bench_overflow_bound(&card, &cost, &m);
    assert_true(near(b.miss_s, 0.2) && near(b.card_s, 0.12));
}

/* Two budgets, one way to quantise, two routings; the smaller budget was refused. */
struct made {
    struct sweep_plan plan;
    struct bench_plan bench;
    struct model_flags flags;
    struct sweep_point points[4];
    struct bench_row rows[2][2];
    struct sweep sweep;
};

static void make(struct made *m)
{
    *m = (struct made){.plan = {.budgets = {8, 16},
                                .n_budgets = 2,
                                .dense = {"int8"},
                                .n_dense = 1,
                                .routings = {"uniform", "local"},
                                .n_routings = 2},
                       .bench = {.repeat = 3, .decode_tokens = 256}};
    model_flags_defaults(&m->flags);
    m->flags.model_path = "models/<odd>";
    for (size_t i = 0; i < 4; i++) {
        m->points[i] = (struct sweep_point){
            .budget_gb = i < 2 ? 8 : 16, .dense = "int8", .routing = m->plan.routings[i % 2]};
        if (i < 2) {
            strcpy(m->points[i].refused, "needs --gpu-memory-gb 9.1");
            continue;
        }
        m->rows[i % 2][0] = (struct bench_row){.kind = BENCH_PREFILL,
                                               .n_tokens = 512,
                                               .n_seqs = 1,
                                               .tok_s = {1, 2, 3000, 4, 5},
                                               .bound_tok_s = 6000};
        m->rows[i % 2][1] =
            (struct bench_row){.kind = BENCH_DECODE,
                               .n_tokens = 256,
                               .n_seqs = 1,
                               .tok_s = {1, 2, 260, 4, 5},
                               .misses = {.overflows = true,
                                          .block_bytes = 1000000,
                                          .hits = 240,
                                          .fetched = 20,
                                          .cpu = 60,
                                          .ahead = 10,
                                          .ahead_used = 8},
                               .overflow = {.bound_s = 0.0025, .in_turn_s = 0.003, .by = "misses"},
                               .bound_tok_s = 400};
        m->points[i].result = (struct bench_result){
            .rows = m->rows[i % 2],
            .n_rows = 2,
            .overflows = true,
            .offload = {.n_layers = 40, .n_experts = 256, .n_slots = 5120, .n_staging = 32}};
    }
    m->sweep = (struct sweep){.plan = &m->plan,
                              .bench = &m->bench,
                              .flags = &m->flags,
                              .card = card,
                              .card_name = "a card",
                              .cpu_name = "a \"CPU\"",
                              .points = m->points,
                              .n_points = 4};
}

/* Runs of spaces as one. */
static void squeeze(char *text)
{
    char *to = text;

    for (const char *from = text; *from; from++) {
        if (*from != ' ' || from[1] != ' ') {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static void test_table(void **state)
{
    struct made m;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);

    (void)state;
    make(&m);
    assert_non_null(out);
    sweep_table(out, &m.sweep);
    fclose(out);
    squeeze(text);
    assert_non_null(strstr(text, " 8.0 - int8 local refused: needs --gpu-memory-gb 9.1\n"));
    assert_non_null(strstr(text, " 5120 50.0 prefill 512 "));
    assert_non_null(strstr(text, " decode 1 x, depth 0 260.0 75.0 20.0 60.0 10.0 80.0 30.00 60.00 "
                                 "400.0 65.0 333.3 78.0\n"));
    free(text);
}

static void test_json(void **state)
{
    struct json_object *o, *points, *point, *cases;
    struct error err = {0};
    struct made m;
    struct buf text;
    double v = 0;

    (void)state;
    make(&m);
    buf_init(&text);
    assert_int_equal(sweep_json(&text, &m.sweep, &err), OK);
    assert_int_equal(json_parse(&o, buf_cstr(&text), text.len, &err), OK);
    points = json_get(o, "points");
    assert_int_equal(json_object_array_length(points), 4);
    assert_string_equal(json_object_get_string(json_get(o, "cpu")), "a \"CPU\"");
    point = json_object_array_get_idx(points, 0);
    assert_string_equal(json_object_get_string(json_get(point, "refused")),
                        "needs --gpu-memory-gb 9.1");
    assert_int_equal(json_object_array_length(json_get(point, "cases")), 0);
    point = json_object_array_get_idx(points, 3);
    assert_string_equal(json_object_get_string(json_get(point, "routing")), "local");
    assert_true(json_object_get_double(json_get(point, "resident")) == 0.5);
    cases = json_get(point, "cases");
    assert_int_equal(json_object_array_length(cases), 2);
    v = json_object_get_double(json_get(json_object_array_get_idx(cases, 1), "hit_rate"));
    assert_true(near(v, 0.75));
    v = json_object_get_double(
        json_get(json_object_array_get_idx(cases, 1), "link_bytes_per_token"));
    assert_true(near(v, 30e6));
    json_object_put(o);
    buf_release(&text);
}

static void test_ways(void **state)
{
    struct json_object *o, *points;
    struct error err = {0};
    struct made m;
    struct buf text;
    char *table = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&table, &n);

    (void)state;
    make(&m);
    assert_non_null(out);
    m.plan.ways = sweep_ablation;
    m.plan.n_ways = sweep_ablation_count;
    m.points[0].way = &sweep_ablation[0];
    m.points[3].way = &sweep_ablation[2];
    sweep_table(out, &m.sweep);
    fclose(out);
    squeeze(table);
    assert_non_null(strstr(table, "cache 8.0 - int8 uniform refused: "));
    assert_non_null(strstr(table, "split 16.0 0.00 int8 local 5120 50.0 prefill 512 "));
    free(table);
    buf_init(&text);
    assert_int_equal(sweep_json(&text, &m.sweep, &err), OK);
    assert_int_equal(json_parse(&o, buf_cstr(&text), text.len, &err), OK);
    points = json_get(o, "points");
    assert_string_equal(
        json_object_get_string(json_get(json_object_array_get_idx(points, 3), "way")), "split");
    json_object_put(o);
    buf_release(&text);
}

static void test_recovery(void **state)
{
    struct bench_recovery r = {.n_prompt = 2048, .before = 0.9};
    struct made m;
    char *table = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&table, &n);

    (void)state;
    assert_non_null(out);
    for (size_t i = 0; i < RECOVERY_STEPS; i++) {
        r.hits[i] = i < 10 ? 0.5 : 0.895;
    }
    r.hits[20] = NAN; /* asked for nothing */
    bench_recovery_judge(&r);
    assert_int_equal(r.n_steps, 10);
    assert_true(near(r.after_first, 0.5) && near(r.after_last, 0.895));
    r.hits[12] = 0.8; /* one step that is lower by chance */
    r.hits[11] = 0.98;
    bench_recovery_judge(&r);
    assert_int_equal(r.n_steps, 10);
    make(&m);
    m.points[3].result.recovery = r;
    sweep_table(out, &m.sweep);
    fclose(out);
    assert_non_null(strstr(table,
                           "recovery: hits 90.0 % before a prompt of 2048, 50.0 in the 5 steps "
                           "after it, 89.5 at the end of 40; recovered after 10 steps\n"));
    free(table);
    for (size_t i = 0; i < RECOVERY_STEPS; i++) {
        r.hits[i] = 0.5;
    }
    bench_recovery_judge(&r);
    assert_int_equal(r.n_steps, RECOVERY_STEPS);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part)) {
        n++;
    }
    return n;
}

static void test_svg(void **state)
{
    struct error err = {0};
    struct made m;
    struct buf text;

    (void)state;
    make(&m);
    buf_init(&text);
    assert_int_equal(sweep_svg(&text, &m.sweep, &err), OK);
    assert_int_equal(count(buf_cstr(&text), "<circle "), 4); /* 2 panels, 2 lines, 1 budget */
    assert_int_equal(count(buf_cstr(&text), "decode 1 x, depth 0, tok/s"), 1);
    assert_int_equal(count(buf_cstr(&text), "models/&lt;odd&gt;"), 1);
    assert_int_equal(count(buf_cstr(&text), "nan"), 0);
    assert_int_equal(count(buf_cstr(&text), "<text "), count(buf_cstr(&text), "</text>"));
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound), cmocka_unit_test(test_table),    cmocka_unit_test(test_json),
        cmocka_unit_test(test_ways),  cmocka_unit_test(test_recovery), cmocka_unit_test(test_svg),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
