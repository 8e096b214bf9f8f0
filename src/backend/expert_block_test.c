/* expert_block_test.c - parts of a block neither overlap nor leave it; views show their shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the three above */
#include <cmocka.h>

#include "backend/expert_block.h"

static const struct expert_shape QWEN = {.hidden = 2048,
                                         .width = 512,
                                         .kind = WEIGHT_INT4,
                                         .scales = DTYPE_F16,
                                         .group = 128,
                                         .down_group = 128};

static void the_published_shape_has_the_published_size(void **state)
{
    struct expert_block b;

    (void)state;
    assert_true(expert_block_init(&b, &QWEN));
    assert_int_equal(b.n_bytes, 3 * 512 * 2048 / 2 + 3 * 512 * 16 * 2);
    assert_int_equal(b.part[EXPERT_GATE].values, 0);
    assert_int_equal(b.part[EXPERT_UP].values, 512 * 1024);
    assert_int_equal(b.part[EXPERT_DOWN].values, 1024 * 1024);
    assert_int_equal(b.part[EXPERT_GATE].scales, 3 * 512 * 1024);
}

/* Marks the n bytes at p, which must lie in the block and be free. */
static void claim(uint8_t *marks, const struct expert_block *b, const uint8_t *base, const void *p,
                  size_t n)
{
    size_t at = (size_t)((const uint8_t *)p - base);

    assert_int_equal(at % EXPERT_BLOCK_ALIGN, 0);
    assert_true(at + n <= b->n_bytes);
    for (size_t i = at; i < at + n; i++) {
        assert_int_equal(marks[i], 0);
        marks[i] = 1;
    }
}

static void parts_do_not_overlap(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 32; c++) {
        struct expert_shape shape = {
            .hidden = 96,
            .width = 160,
            .kind = c & 1 ? WEIGHT_INT8 : WEIGHT_INT4,
            .scales = c & 2 ? DTYPE_F32 : DTYPE_BF16,
            .group = c & 4 ? 96 : 32,
            .down_group = c & 4 ? 160 : 32,
            .has_zeros = c & 8,
            .has_perms = c & 16,
        };
        struct expert_shape seen;
        struct expert_block b;
        struct expert_weights view;
        uint8_t *marks, *base;

        assert_true(expert_block_init(&b, &shape));
        assert_int_equal(b.n_bytes % EXPERT_BLOCK_ALIGN, 0);
        marks = calloc(b.n_bytes, 1);
        base = malloc(b.n_bytes);
        assert_non_null(marks);
        assert_non_null(base);
        view = expert_block_view(&b, base);
        for (size_t p = 0; p < EXPERT_PARTS; p++) {
            const struct weight *w = p == 0 ? &view.gate : p == 1 ? &view.up : &view.down;
            size_t n_scales = w->n_out * weight_n_groups(w);

            claim(marks, &b, base, w->data, w->n_out * weight_row_bytes(w));
            claim(marks, &b, base, w->scales, n_scales * dtype_bytes(w->dtype));
            assert_true(!w->zeros == !shape.has_zeros && !w->perm == !shape.has_perms);
            if (w->zeros) {
                claim(marks, &b, base, w->zeros, n_scales);
            }
            if (w->perm) {
                claim(marks, &b, base, w->perm, w->n_in * sizeof *w->perm);
            }
        }
        assert_true(expert_shape_of(&seen, &view));
        assert_true(expert_shape_equal(&seen, &shape));
        free(marks);
        free(base);
    }
}

static void what_is_not_uniform_has_no_shape(void **state)
{
    struct expert_block b;
    struct expert_weights good, w;
    struct expert_shape shape, other = QWEN;
    static const uint8_t nowhere[64];

    (void)state;
    assert_true(expert_block_init(&b, &QWEN));
    good = expert_block_view(&b, nowhere);
    assert_true(expert_shape_of(&shape, &good));
    w = good;
    w.up.kind = WEIGHT_DENSE;
    assert_false(expert_shape_of(&shape, &w));
    w = good;
    w.up.group = 64;
    assert_false(expert_shape_of(&shape, &w));
    w = good;
    w.down.zeros = nowhere;
    assert_false(expert_shape_of(&shape, &w));
    w = good;
    w.down.n_out = 1024;
    assert_false(expert_shape_of(&shape, &w));
    other.down_group = 64;
    assert_false(expert_shape_equal(&QWEN, &other));
    other = QWEN;
    other.hidden = (size_t)1 << 62;
    assert_false(expert_block_init(&b, &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_shape_has_the_published_size),
        cmocka_unit_test(parts_do_not_overlap),
        cmocka_unit_test(what_is_not_uniform_has_no_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
