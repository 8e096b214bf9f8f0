/* cuda_testing.h - one operation on the CPU and on the card, compared.
 *
 * Place:  backend/cuda; for the tests of this room. The card is a real one where there is one, else the
 *         emulated one (emulator/emulator.h).
 * Idea:   a test fills host buffers as it would for the CPU and mirrors them: each has a twin on the card
 *         from then on. Running an op runs it on the CPU over the host buffers and on the card over the
 *         twins, so both go on from what they themselves computed before. Weights and vectors of an op
 *         need no mirroring; they are brought over for the time of a run.
 * Checks: the card runs every op twice from the same contents, once op by op and once as a whole plan
 *         (a replayed graph, if the step is a decode step); the bits must be the same. Emulated threads
 *         take their turns in another order each time.
 *
 *         struct cuda_pair p;
 *         float *x = test_floats(n_rows * 64, 1, &seed), *out = test_poisoned(n_rows * 64);
 *
 *         cuda_pair_open(&p);
 *         cuda_pair_mirror(&p, x, n_rows * 64 * sizeof *x);
 *         cuda_pair_mirror(&p, out, n_rows * 64 * sizeof *out);
 *         op = (struct op){.kind = OP_NORM, .name = "norm", .u.norm = {test_operand(x, 64, DTYPE_F32),
 *                          test_operand(out, 64, DTYPE_F32), weight, 1e-6f}};
 *         cuda_pair_run(&p, &op, &step, NULL);
 *         cuda_pair_expect(&p, "norm f32", "7 rows of 64", DTYPE_F32, out, n_rows * 64, 1e-5);
 *         cuda_pair_close(&p);   prints the worst error of "norm f32" and of other groups
 *
 * Failures end the running test with a text, as all of cmocka's checks do. */
#ifndef BACKEND_CUDA_CUDA_TESTING_H
#define BACKEND_CUDA_CUDA_TESTING_H

#include "backend/backend.h"
#include "backend/cpu/cpu_test_util.h"
#include "backend/cuda/cuda_backend.h"

enum { CUDA_PAIR_GROUPS_MAX = 64, CUDA_PAIR_NAME = 80 };

struct cuda_mirror {
    uintptr_t host;
    size_t n_bytes;
    uint8_t *data;       /* on the card, 64-byte aligned and no better */
    uint8_t *allocation; /* which holds it */
};

struct cuda_mirrors {
    struct cuda_mirror *all;
    size_t n, capacity;
};

struct cuda_pair {
    struct backend *cpu, *gpu;
    bool is_emulated; /* choose small sizes */
    bool runs_once;   /* skips the second run; for what takes too long */
    /* Both runs are of the whole plan: for ops that run as one, which need not give the bits of the ops
     * one by one, nor write what passes between them. */
    bool is_fused;
    int sm; /* of the card */
    /* What the card said of the last step: [n_rows]; NULL when the step had none. */
    int16_t *bad_layer;
    float *router_margin;

    struct cuda_mirrors mirrors;   /* asked for by the test */
    struct cuda_mirrors constants; /* of the plan that runs */
    struct op *ops;                /* the card's version of it */
    struct expert_weights **experts;
    size_t n_ops;
    struct {
        char name[CUDA_PAIR_NAME], worst_case[CUDA_PAIR_NAME];
        double worst, tolerance;
        size_t n_cases;
    } group[CUDA_PAIR_GROUPS_MAX];
    size_t n_groups;
};

/* The real card or the emulated one of compute capability 9.0. The CPU side computes in float32. */
void cuda_pair_open(struct cuda_pair *p);

/* An emulated card of this compute capability (75, 80, ...), even where there is a real one. */
void cuda_pair_open_sm(struct cuda_pair *p, int sm);

/* Frees everything and prints the worst error per group. */
void cuda_pair_close(struct cuda_pair *p);

/* Gives [host, host + n_bytes) a twin with the same contents; one that it has already gets the contents. */
void cuda_pair_mirror(struct cuda_pair *p, const void *host, size_t n_bytes);

/* The pools' memory likewise. Returns the pools as the card has them. */
struct state_pools cuda_pair_pools(struct cuda_pair *p, const struct state_pools *host);

/* Forgets all twins; before host buffers are freed whose addresses may be used again. */
void cuda_pair_forget(struct cuda_pair *p);

/* check(), prepare() and run() on both sides. op->kernel is the card's kernel afterwards. Mirrors the
 * pools if they are not. step->bad_layer must be the same on both sides. */
void cuda_pair_run(struct cuda_pair *p, struct op *op, const struct step *step,
                   const struct state_pools *state);

/* The same with several ops as one plan. */
void cuda_pair_run_plan(struct cuda_pair *p, struct op *ops, size_t n_ops, const struct step *step,
                        const struct state_pools *state);

/* The card must refuse op with a text that holds `part`. */
void cuda_pair_refused(struct cuda_pair *p, const struct op *op, const char *part);

/* The card's version of an op; its constants last until the next run. */
struct op cuda_pair_op(struct cuda_pair *p, const struct op *op);

/* What the twin of a host range holds. */
void cuda_pair_fetch(struct cuda_pair *p, const void *host, void *out, size_t n_bytes);

/* Compares n elements of this type (float types, or I32, which must be equal) with their twins: the worst
 * |card - cpu| / (1 + |cpu|), which must not pass `tolerance`. Elements of equal bits are equal, NaN too:
 * parts that both sides left alone. Returns the worst and notes it in the group's line. */
double cuda_pair_expect(struct cuda_pair *p, const char *group, const char *name, enum dtype type,
                        const void *host, size_t n, double tolerance);

/* The same for rows of `cols` elements that are sums of terms as large as their row: an element that nearly
 * cancels has its neighbours' error. |card - cpu| / (1 + the larger of |cpu| and the row's root mean
 * square). */
double cuda_pair_expect_rows(struct cuda_pair *p, const char *group, const char *name,
                             enum dtype type, const void *host, size_t n, size_t cols,
                             double tolerance);

/* f32, and room for one step of the type that values were rounded to. */
double cuda_tolerance(enum dtype round, double f32);

/* A step of sequences for tests: sequence i has n_rows[i] rows after position[i] tokens, slot i, and pages of
 * its own: page numbers are dealt out so that neighbours in a sequence are not neighbours in the pool. All
 * rows are output rows; tokens are below n_vocab. */
struct test_step {
    struct step step;
    size_t n_pages; /* that the pool needs */
    struct span *spans;
    int32_t *pages, *tokens, *out_rows;
    int16_t *bad_layer;
};
void test_step_make(struct test_step *t, size_t n_spans, const size_t *n_rows,
                    const size_t *position, size_t n_vocab);
void test_step_release(struct test_step *t);

#endif
