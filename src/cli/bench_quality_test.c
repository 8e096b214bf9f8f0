/* bench_quality_test.c - rows of tokens, the divergence, and the demo model under every setting.
 *
 * Place: cli, cmocka. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "cli/bench_quality.h"
#include "cli/token_rows.h"
#include "formats/safetensors.h"

#define RILL SPILLWAY_SOURCE_DIR "/models/rill"

static void test_divergence(void **state)
{
    const float log_p[] = {logf(0.5f), logf(0.25f), logf(0.25f)};
    const float same[] = {1 + logf(2), 1, 1}, flat[] = {3, 3, 3};
    (void)state;

    assert_true(fabs(quality_divergence(log_p, same, 3)) < 1e-6);
    /* 0.5 log(0.5 * 3) + 0.5 log(0.25 * 3) */
    assert_true(fabs(quality_divergence(log_p, flat, 3) - (0.5 * log(1.5) + 0.5 * log(0.75))) <
                1e-6);
}

/* ---- rows ---- */

static void write_rows(const char *path, enum dtype dtype, const void *ids, size_t n_rows,
                       size_t width)
{
    struct tensor t = {
        .data = (void *)(uintptr_t)ids, .dtype = dtype, .n_dims = 2, .shape = {n_rows, width}};
    struct safetensors_writer *w;

    assert_int_equal(safetensors_writer_new(&w, NULL), OK);
    assert_int_equal(safetensors_writer_add(w, "rows", &t, NULL), OK);
    assert_int_equal(safetensors_writer_finish(w, path, NULL), OK);
    safetensors_writer_free(w);
}

static void test_rows_of_files(void **state)
{
    const int64_t wide[] = {1, 2, 3, 4, 5, 6}, too_wide[] = {1, INT64_MAX};
    const int32_t narrow[] = {7, 8};
    const float floats[] = {1, 2};
    struct token_rows r;
    struct error err;
    char *path = *state;

    write_rows(path, DTYPE_I64, wide, 2, 3);
    assert_int_equal(token_rows_of_file(&r, path, &err), OK);
    assert_int_equal(r.n_rows, 2);
    assert_int_equal(r.rows[1].n, 3);
    assert_int_equal(r.rows[1].ids[2], 6);
    assert_int_equal(token_rows_predicted(&r), 4);
    token_rows_limit(&r, 3);
    assert_int_equal(r.n_rows, 2);
    assert_int_equal(r.rows[1].n, 2);
    token_rows_limit(&r, 2);
    assert_int_equal(r.n_rows, 1);
    token_rows_release(&r);

    write_rows(path, DTYPE_I32, narrow, 1, 2);
    assert_int_equal(token_rows_of_file(&r, path, &err), OK);
    assert_int_equal(r.rows[0].ids[0], 7);
    token_rows_release(&r);

    write_rows(path, DTYPE_I32, narrow, 2, 1);
    assert_int_equal(token_rows_of_file(&r, path, &err), ERR_LIMIT);
    token_rows_release(&r);
    write_rows(path, DTYPE_I64, too_wide, 1, 2);
    assert_int_equal(token_rows_of_file(&r, path, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "not a token id"));
    token_rows_release(&r);
    write_rows(path, DTYPE_F32, floats, 1, 2);
    assert_int_equal(token_rows_of_file(&r, path, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "float32"));
    token_rows_release(&r);
    assert_int_equal(remove(path), 0);
    assert_int_equal(token_rows_of_file(&r, path, &err), ERR_NOT_FOUND);
    token_rows_release(&r);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_rows_of_golden(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"loss_rows\":1,\"loss_row_tokens\":3,\"loss_text_tokens\":[1,2]}",
        "{\"loss_rows\":1,\"loss_row_tokens\":2,\"loss_text_tokens\":[1,-2]}",
        "{\"loss_rows\":-1,\"loss_row_tokens\":2,\"loss_text_tokens\":[1,2]}",
        "{\"loss_rows\":9223372036854775807,\"loss_row_tokens\":2,\"loss_text_tokens\":[1,2]}",
    };
    struct token_rows r;
    struct error err;
    double recorded = 0;
    char *path = *state;

    write_text(path, "{\"loss_rows\":2,\"loss_row_tokens\":2,\"loss_text_tokens\":[1,2,3,4,5],"
                     "\"mean_loss\":0.5}");
    assert_int_equal(token_rows_of_golden(&r, &recorded, path, &err), OK);
    assert_true(r.n_rows == 2 && r.rows[1].ids[1] == 4 && recorded == 0.5);
    token_rows_release(&r);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(path, bad[i]);
        assert_int_equal(token_rows_of_golden(&r, NULL, path, &err), ERR_FORMAT);
        token_rows_release(&r);
    }
    assert_int_equal(remove(path), 0);
}

static void test_rows_of_text(void **state)
{
    struct tokenizer *t = NULL;
    struct token_rows r;
    struct error err;
    char *path = *state;

    assert_int_equal(tokenizer_load(&t, RILL "/tokenizer.json", &err), OK);
    write_text(path, "The water of the reservoir runs over the spillway, and down the valley.");
    assert_int_equal(token_rows_of_text(&r, t, path, 5, &err), OK);
    assert_true(r.n_rows > 1);
    for (size_t i = 0; i < r.n_rows; i++) {
        assert_true(r.rows[i].n >= 2 && r.rows[i].n <= 5);
    }
    token_rows_release(&r);
    write_text(path, "");
    assert_int_equal(token_rows_of_text(&r, t, path, 5, &err), ERR_LIMIT);
    token_rows_release(&r);
    assert_int_equal(remove(path), 0);
    tokenizer_free(t);
}

/* ---- the demo model ---- */

static void test_demo_model(void **state)
{
    const struct quality_source source = {.n_tokens_max = 300};
    struct model_flags flags = {0};
    struct quality_report r;
    struct error err = {0};
    struct json_object *o = NULL;
    struct buf text;
    (void)state;

    model_flags_defaults(&flags);
    flags.model_path = RILL;
    if (quality_measure(&r, &flags, &source, NULL, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(r.n_tokens, 300);
    assert_int_equal(r.n_rows, 5);
    assert_true(r.recorded_loss > 0.4 && r.recorded_loss < 0.5);
    assert_true(r.rows[0].divergence == 0 && r.rows[0].same_best == 1);
    for (size_t i = 0; i < r.n_rows; i++) {
        const struct quality_row *row = &r.rows[i];

        print_message("%s, dense %s: loss %.6f, divergence %.2e, same best %.4f\n",
                      row->activations, row->dense_quant, row->loss, row->divergence,
                      row->same_best);
        assert_true(fabs(row->loss - r.rows[0].loss) < 0.005);
        assert_true(row->divergence >= 0 && row->divergence < 0.002);
        assert_true(i == 0 || row->divergence > 0); /* each setting does change something */
        assert_true(row->same_best > 0.95);
    }
    buf_init(&text);
    quality_json(&text, &r);
    assert_int_equal(json_parse(&o, text.data, text.len, &err), OK);
    assert_int_equal(json_object_array_length(json_get(o, "settings")), 5);
    json_object_put(o);
    buf_release(&text);
}

static void test_nothing_to_measure_on(void **state)
{
    const struct quality_source golden = {0}, rows = {.rows = "/nonexistent/rows"};
    struct model_flags flags = {0};
    struct quality_report r;
    struct error err;
    (void)state;

    model_flags_defaults(&flags);
    flags.model_path = SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe";
    assert_int_equal(quality_measure(&r, &flags, &golden, NULL, NULL, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "--text"));
    assert_int_equal(quality_measure(&r, &flags, &rows, NULL, NULL, &err), ERR_NOT_FOUND);
}

static int make_path(void **state)
{
    char *path = malloc(64);
    int fd;

    if (!path) {
        return 1;
    }
    memcpy(path, "/tmp/bench_quality_test.XXXXXX", sizeof "/tmp/bench_quality_test.XXXXXX");
    fd = mkstemp(path);
    *state = path;
    return fd < 0 || close(fd) != 0;
}

static int free_path(void **state)
{
    remove(*state);
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence),
        cmocka_unit_test_setup_teardown(test_rows_of_files, make_path, free_path),
        cmocka_unit_test_setup_teardown(test_rows_of_golden, make_path, free_path),
        cmocka_unit_test_setup_teardown(test_rows_of_text, make_path, free_path),
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_nothing_to_measure_on),
    };
    return cmocka_run_group_tests_name("bench_quality", tests, NULL, NULL);
}
