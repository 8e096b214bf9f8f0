/* cuda_ahead_test.c - which weights kernels ask for on behalf of later ones.
 *
 * Place: backend/cuda. The plan is made here by hand, and nothing runs. That the ranges are memory shows where whole
 *        models run under the emulator, which touches their ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/cuda_ahead.h"
#include "backend/cuda/cuda_private.h"

enum {
    MIXER = 0,
    OUT = 2,
    NORM_2,
    ROUTER,
    SHARED_IN,
    SHARED_DOWN,
    EXPERTS,
    NEXT_NORM,
    NEXT,
    N_OPS
};
enum { N_IN = 64, ROW = N_IN * 2 };

static uint8_t memory[1 << 20] __attribute__((aligned(64)));

struct fixture {
    struct cuda_backend be;
    struct cuda_private own;
    struct cuda_unit units[N_OPS + 1];
    struct op ops[N_OPS];
    size_t used;
};

static struct weight dense(struct fixture *f, size_t n_out, size_t shift)
{
    struct weight w = {.kind = WEIGHT_DENSE, .dtype = DTYPE_BF16, .n_out = n_out, .n_in = N_IN};

    w.data = memory + f->used + shift;
    f->used += n_out * ROW + 64;
    assert_true(f->used <= sizeof memory);
    return w;
}

static void linear(struct fixture *f, size_t i, size_t n_out, size_t shift)
{
    struct op_linear *u = &f->ops[i].u.linear;

    f->ops[i].kind = OP_LINEAR;
    u->part[u->n_parts++].w = dense(f, n_out, shift);
}

static void make(struct fixture *f, size_t cache_bytes)
{
    memset(f, 0, sizeof *f);
    f->ops[MIXER].kind = OP_CONV;
    f->ops[MIXER + 1].kind = OP_DELTA;
    linear(f, OUT, 100, 0);
    f->ops[NORM_2].kind = OP_NORM;
    f->ops[ROUTER].kind = OP_ROUTE;
    f->ops[ROUTER].u.route.router = dense(f, 10, 2);
    linear(f, SHARED_IN, 20, 0);
    linear(f, SHARED_IN, 20, 0);
    linear(f, SHARED_DOWN, 30, 0);
    f->ops[EXPERTS].kind = OP_EXPERTS;
    f->ops[NEXT_NORM].kind = OP_NORM;
    linear(f, NEXT, 300, 0);
    linear(f, NEXT, 200, 0);
    f->units[MIXER] = (struct cuda_unit){.fusion = &cuda_fuse_gdn, .n_ops = 2};
    f->units[NORM_2] = (struct cuda_unit){.fusion = &cuda_fuse_moe, .n_ops = NEXT_NORM - NORM_2};
    f->be.own = &f->own;
    f->be.card.cache_bytes = cache_bytes;
    f->be.card.n_multiprocessors = 10;
    f->own.ops = f->ops;
    f->own.n_ops = N_OPS;
    f->own.units = f->units;
    cuda_ahead_prepare(&f->be);
}

static size_t bytes_of(const struct ahead_args *a)
{
    size_t n = 0;

    for (int32_t i = 0; i < a->n_ranges; i++) {
        assert_int_equal((uintptr_t)a->range[i].data % AHEAD_UNIT, 0);
        assert_int_equal(a->range[i].n_bytes % AHEAD_UNIT, 0);
        assert_true(a->range[i].n_bytes > 0);
        n += a->range[i].n_bytes;
    }
    return n;
}

static void a_mixer_asks_up_to_the_experts(void **state)
{
    struct fixture f;
    struct ahead_args a;

    (void)state;
    make(&f, sizeof memory);
    a = cuda_ahead_of(&f.be, &f.ops[MIXER]);
    assert_int_equal(a.n_ranges, 5);
    assert_ptr_equal(a.range[0].data, f.ops[OUT].u.linear.part[0].w.data);
    assert_int_equal(a.range[0].n_bytes, 100 * ROW);
    /* the router begins and ends between units */
    assert_ptr_equal(a.range[1].data,
                     (const uint8_t *)f.ops[ROUTER].u.route.router.data + AHEAD_UNIT - 2);
    assert_int_equal(a.range[1].n_bytes, 10 * ROW - AHEAD_UNIT);
    assert_ptr_equal(a.range[4].data, f.ops[SHARED_DOWN].u.linear.part[0].w.data);
    assert_int_equal(bytes_of(&a), 180 * ROW - AHEAD_UNIT);
    assert_int_equal(cuda_ahead_of(&f.be, &f.ops[OUT]).n_ranges, 0);
    assert_int_equal(cuda_ahead_blocks(&f.be, &a, 4), 6);
    assert_int_equal(cuda_ahead_blocks(&f.be, &a, 11), 0);
    cuda_ahead_free(&f.be);
}

static void a_tail_is_shared_out(void **state)
{
    struct fixture f;
    struct ahead_args all, first, second;
    const struct ahead_range *last;

    (void)state;
    make(&f, sizeof memory);
    all = cuda_ahead_of(&f.be, &f.ops[NORM_2]);
    first = cuda_ahead_of_tail(&f.be, &f.ops[NORM_2], CUDA_AHEAD_IN);
    second = cuda_ahead_of_tail(&f.be, &f.ops[NORM_2], CUDA_AHEAD_GATE);
    assert_int_equal(all.n_ranges, 2);
    assert_int_equal(bytes_of(&all), 500 * ROW);
    assert_in_range(bytes_of(&first) + bytes_of(&second), 500 * ROW - 2 * AHEAD_UNIT, 500 * ROW);
    assert_ptr_equal(first.range[0].data, all.range[0].data);
    last = &first.range[first.n_ranges - 1];
    assert_in_range((const uint8_t *)second.range[0].data -
                        ((const uint8_t *)last->data + last->n_bytes),
                    0, AHEAD_UNIT);
    cuda_ahead_free(&f.be);
}

static void a_small_cache_asks_for_less(void **state)
{
    struct fixture f;
    struct ahead_args a;

    (void)state;
    make(&f, 100 * ROW);
    a = cuda_ahead_of(&f.be, &f.ops[MIXER]);
    assert_int_equal(a.n_ranges, 1);
    assert_true(bytes_of(&a) <= 100 * ROW);
    a = cuda_ahead_of(&f.be, &f.ops[NORM_2]);
    assert_true(bytes_of(&a) <= 100 * ROW);
    cuda_ahead_free(&f.be);
    make(&f, 0);
    assert_int_equal(cuda_ahead_of(&f.be, &f.ops[MIXER]).n_ranges, 0);
    cuda_ahead_free(&f.be);
}

static void nothing_is_asked_for_when_told_so(void **state)
{
    struct fixture f;
    struct op other = {.kind = OP_CONV};

    (void)state;
    make(&f, sizeof memory);
    assert_int_equal(cuda_ahead_of(&f.be, &other).n_ranges, 0);
    cuda_ahead_free(&f.be);
    f.own.no_ahead = true;
    cuda_ahead_prepare(&f.be);
    assert_int_equal(cuda_ahead_of(&f.be, &f.ops[MIXER]).n_ranges, 0);
    assert_int_equal(cuda_ahead_of_tail(&f.be, &f.ops[NORM_2], CUDA_AHEAD_IN).n_ranges, 0);
    cuda_ahead_free(&f.be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixer_asks_up_to_the_experts),
        cmocka_unit_test(a_tail_is_shared_out),
        cmocka_unit_test(a_small_cache_asks_for_less),
        cmocka_unit_test(nothing_is_asked_for_when_told_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
