/* cuda_offload_pageable_test.c - layers whose experts are in memory that the card cannot read, mixed with others:
 * nothing of them is fetched, read in place or fetched ahead, whatever the orders say, no table that kernels
 * see has their addresses, and steps are as right as with resident experts. */
#include "backend/cuda/cuda_offload_testing.h"
#include "backend/cuda/cuda_private.h"

/* Every expert of a pageable layer is in a slot or nowhere; of other layers in a slot or on the host. */
static void check_tables(struct world *w)
{
    static struct experts_matrix table[LAYERS][N_EXPERTS][EXPERTS_MATRICES];
    const struct offload_pool *pool = &((struct cuda_backend *)w->small.be)->own->offload.pool;
    const uint8_t *blocks[LAYERS];

    w->small.be->ops->read(w->small.be, table, pool->tables, sizeof table);
    w->small.be->ops->read(w->small.be, blocks, pool->blocks, sizeof blocks);
    for (size_t l = 0; l < LAYERS; l++) {
        assert_ptr_equal(blocks[l], w->pageable[l] ? NULL : w->blocks[l]);
        for (size_t e = 0; e < N_EXPERTS; e++) {
            const uint8_t *at = w->blocks[l] + e * w->block.n_bytes;
            int32_t slot = w->slot_of[l][e];

            for (size_t m = 0; m < EXPERTS_MATRICES; m++) {
                const struct experts_matrix *x = &table[l][e][m];
                const uint8_t *block =
                    slot >= 0 ? pool->slots + (size_t)slot * pool->block_bytes : at;

                if (slot < 0 && w->pageable[l]) {
                    assert_true(!x->data && !x->scales && !x->zeros && !x->perm);
                } else {
                    assert_ptr_equal(x->data, block + pool->values[m]);
                    assert_ptr_equal(x->scales, block + pool->scales[m]);
                }
            }
        }
    }
}

/* Orders to fetch all, a half or nothing; predictions that are not for pageable layers. */
static void misses_are_the_cpus(void **state)
{
    static const struct {
        struct setup is;
        bool pageable[LAYERS];
    } cases[] = {
        {{DTYPE_BF16, SYMMETRIC, false, false, 12, true, 4, 1024, 0, false, LATE_NOBODY},
         {false, true, false}},
        {{DTYPE_F16, ZEROS, false, false, 12, true, 2, 1024, 3, true, LATE_NOBODY},
         {true, false, true}},
        {{DTYPE_BF16, PERMS, true, true, 12, true, 4, 1024, 2, false, LATE_DICE},
         {false, true, true}},
        {{DTYPE_F16, WIDE_ZEROS, false, false, 14, true, 4, 1024, 4, true, LATE_NOBODY},
         {false, false, true}},
        {{DTYPE_BF16, SYMMETRIC, false, false, 0, true, 4, 1024, 0, false, LATE_NOBODY},
         {true, true, true}},
        {{DTYPE_BF16, SYMMETRIC, false, false, 24, true, 4, 1024, 4, true, LATE_NOBODY},
         {true, true, true}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct setup *s = &cases[i].is;
        struct world w;
        double worst;

        world_open_pageable(&w, s, true, cases[i].pageable);
        check_tables(&w);
        worst = steps_run(&w);
        print_line(s, &w, worst);
        check_tables(&w);
        assert_true(worst <= 4 * cuda_tolerance(s->round, 0));
        assert_true(w.n_asked > 0);
        world_close(&w);
    }
}

/* What is brought in between steps is a hit in the next. */
static void inserted_between_steps(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, false, false, 16,         true,
                                       4,          1024,      0,     false, LATE_NOBODY};
    static const bool pageable[LAYERS] = {true, true, true};
    struct error err;
    struct world w;

    (void)state;
    world_open_pageable(&w, &setup, true, pageable);
    for (size_t e = 0; e < N_EXPERTS; e++) { /* all of layer 1, in place of all else */
        struct expert_insertion was = w.owner[e];
        int32_t old = w.slot_of[1][e];

        must(w.small.be->ops->expert_insert(w.small.be, 1, e, e, &err), &err);
        if (was.layer >= 0) {
            w.slot_of[was.layer][was.expert] = -1;
        }
        if (old >= 0 && (size_t)old != e) {
            w.owner[old] = (struct expert_insertion){-1, -1, -1, 0};
        }
        w.owner[e] = (struct expert_insertion){1, (int16_t)e, 0, 0};
        w.slot_of[1][e] = (int32_t)e;
    }
    check_tables(&w);
    assert_true(both_step(&w, 1, true, true) <= 4 * cuda_tolerance(DTYPE_BF16, 0));
    assert_int_equal(w.did.n_hits, TOP_K);
    assert_int_equal(w.did.n_cpu, 2 * TOP_K);
    assert_int_equal(w.did.n_insertions, 0);
    check_tables(&w);
    world_close(&w);
}

static void not_without_a_cpu(void **state)
{
    static const struct setup setup = {DTYPE_BF16, SYMMETRIC, false, false, 4,          true,
                                       4,          1024,      0,     false, LATE_NOBODY};
    static const bool pageable[LAYERS] = {false, false, true};
    struct expert_home other;
    struct error err;
    struct world w;

    (void)state;
    world_open_pageable(&w, &setup, false, pageable);
    other = w.home;
    other.has_cpu = false;
    assert_int_equal(w.small.be->ops->experts_open(w.small.be, &other, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 2 are in pageable memory"));
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misses_are_the_cpus),
        cmocka_unit_test(inserted_between_steps),
        cmocka_unit_test(not_without_a_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
