/* weight_test.c - the layouts of weight.h, spelled out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the three above */
#include <cmocka.h>

#include "backend/backend.h"
#include "backend/weight.h"
#include "base/half.h"

/* 64 inputs in two groups of 32, three rows; value (n, k) is (5 n + 3 k) mod 16. */
struct sample {
    uint8_t data[3 * 32];
    uint16_t scales[3 * 2];
    uint8_t zeros[3 * 2];
    struct weight w;
};

static unsigned sample_q(size_t n, size_t k)
{
    return (unsigned)(5 * n + 3 * k) % 16;
}

static void sample_init(struct sample *s)
{
    for (size_t n = 0; n < 3; n++) {
        uint8_t q[64];

        for (size_t k = 0; k < 64; k++) {
            q[k] = (uint8_t)sample_q(n, k);
        }
        weight_pack_int4(s->data + n * 32, q, 64);
        for (size_t g = 0; g < 2; g++) {
            s->scales[n * 2 + g] = bf16_from_f32((float)(1 + n + 4 * g));
            s->zeros[n * 2 + g] = (uint8_t)(n + 7 * g);
        }
    }
    s->w = (struct weight){.kind = WEIGHT_INT4,
                           .dtype = DTYPE_BF16,
                           .n_out = 3,
                           .n_in = 64,
                           .data = s->data,
                           .group = 32,
                           .scales = s->scales,
                           .zeros = s->zeros};
}

static void a_block_holds_j_and_j_plus_16_in_byte_j(void **state)
{
    uint8_t q[64], packed[32];

    (void)state;
    for (size_t k = 0; k < 64; k++) {
        q[k] = (uint8_t)(k % 16);
    }
    q[3] = 9;
    q[3 + 16] = 14;
    q[32 + 15] = 1;
    q[32 + 31] = 2;
    weight_pack_int4(packed, q, 64);
    assert_int_equal(packed[3], 0xe9);
    assert_int_equal(packed[16 + 15], 0x21);
}

static void a_row_decodes_to_scale_times_distance_from_zero(void **state)
{
    struct sample s;
    float row[64];

    (void)state;
    sample_init(&s);
    for (size_t n = 0; n < 3; n++) {
        weight_row_f32(&s.w, n, row);
        for (size_t k = 0; k < 64; k++) {
            size_t g = k / 32;
            float want = (float)(1 + n + 4 * g) * ((float)sample_q(n, k) - (float)(n + 7 * g));

            assert_true(row[k] == want);
        }
    }
    s.w.zeros = NULL;
    weight_row_f32(&s.w, 1, row);
    assert_true(row[40] == 6.0f * ((float)sample_q(1, 40) - 8.0f));
}

static void perm_puts_a_stored_input_back_in_place(void **state)
{
    struct sample s;
    int32_t perm[64];
    float stored[64], row[64];

    (void)state;
    sample_init(&s);
    for (size_t k = 0; k < 64; k++) {
        perm[k] = (int32_t)(k * 27 % 64);
    }
    s.w.perm = perm;
    weight_row_stored_f32(&s.w, 2, stored);
    weight_row_f32(&s.w, 2, row);
    for (size_t k = 0; k < 64; k++) {
        assert_true(row[perm[k]] == stored[k]);
    }
}

static void a_view_of_rows_is_the_rows(void **state)
{
    struct sample s;
    struct weight last;
    float a[64], b[64];

    (void)state;
    sample_init(&s);
    last = weight_rows(&s.w, 1, 2);
    assert_int_equal(last.n_out, 2);
    for (size_t n = 0; n < 2; n++) {
        weight_row_f32(&s.w, n + 1, a);
        weight_row_f32(&last, n, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

static void sizes_and_names(void **state)
{
    struct sample s;
    struct weight dense = {
        .kind = WEIGHT_DENSE, .dtype = DTYPE_F16, .n_out = 5, .n_in = 7, .data = ""};
    struct weight none = {.kind = WEIGHT_NONE};

    (void)state;
    sample_init(&s);
    assert_int_equal(weight_n_groups(&s.w), 2);
    assert_int_equal(weight_row_bytes(&s.w), 32);
    assert_int_equal(weight_bytes(&s.w), 96 + 12 + 6);
    assert_string_equal(weight_kind_name(&s.w), "int4 g32");
    assert_int_equal(weight_bytes(&dense), 70);
    assert_int_equal(weight_n_groups(&dense), 0);
    assert_string_equal(weight_kind_name(&dense), "float16");
    assert_int_equal(weight_bytes(&none), 0);
    assert_string_equal(weight_kind_name(&none), "none");
}

static void int4_fits_whole_blocks_only(void **state)
{
    (void)state;
    assert_true(weight_int4_fits(128, 32));
    assert_true(weight_int4_fits(192, 128)); /* the last group is short */
    assert_true(weight_int4_fits(96, 96));
    assert_false(weight_int4_fits(100, 100));
    assert_false(weight_int4_fits(128, 16));
    assert_false(weight_int4_fits(128, 48));
    assert_false(weight_int4_fits(128, 0));
    assert_false(weight_int4_fits(0, 0));
}

static void an_op_is_described_in_one_line(void **state)
{
    struct op op = {.kind = OP_LINEAR, .layer = 3, .name = "o_proj", .kernel = "linear int4"};
    char line[160], cut[8];

    (void)state;
    op.u.linear.in = (struct operand){.round = DTYPE_BF16, .cols = 256};
    op.u.linear.part[0].out = (struct operand){.round = DTYPE_F32, .cols = 512};
    op_describe(line, sizeof line, &op);
    assert_string_equal(
        line, "  3  o_proj       linear int4                bfloat16[256] -> float32[512]");
    op_describe(cut, sizeof cut, &op);
    assert_string_equal(cut, "  3  o_");
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        op.kind = (enum op_kind)kind;
        op_describe(line, sizeof line, &op);
        assert_string_not_equal(op_kind_name(op.kind), "unknown");
    }
    assert_string_equal(op_kind_name(OP_KIND_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_holds_j_and_j_plus_16_in_byte_j),
        cmocka_unit_test(a_row_decodes_to_scale_times_distance_from_zero),
        cmocka_unit_test(perm_puts_a_stored_input_back_in_place),
        cmocka_unit_test(a_view_of_rows_is_the_rows),
        cmocka_unit_test(sizes_and_names),
        cmocka_unit_test(int4_fits_whole_blocks_only),
        cmocka_unit_test(an_op_is_described_in_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
