/* offload_testing.h - a stand-in for a device whose experts overflow, for the tests of offload/.
 *
 * Place:  offload, tests only. It has slots and a slot table of its own, resolves the choices of small
 *         steps as expert_home.h says, posts the mail of one layer after the other, and waits for the
 *         answers. Only its experts are not computed: what it returns of a step is the sum of the
 *         answers and what it did. */
#ifndef OFFLOAD_OFFLOAD_TESTING_H
#define OFFLOAD_OFFLOAD_TESTING_H

#include "backend/backend.h"
#include "backend/expert_home.h"
#include "offload/offload.h"

enum { CARD_LAYERS_MAX = 48, CARD_SLOTS_MAX = 4096, CARD_EXPERTS_MAX = 256 };

/* Experts in host memory: int4 with random values. */
struct test_experts {
    struct expert_block block;
    size_t n_layers, n_experts;
    uint8_t *memory;
    const uint8_t *blocks[CARD_LAYERS_MAX];
};

void test_experts_make(struct test_experts *t, size_t n_layers, size_t n_experts, size_t hidden,
                       size_t width);
void test_experts_release(struct test_experts *t);

/* All of them, with float32 activations; borrows t's blocks. */
struct offload_shape test_experts_shape(const struct test_experts *t, size_t top_k);

/* What a layer's experts give on that backend: idx and prob [n_rows][top_k], distinct in a row; x and y [n_rows][hidden].
 * The backend's plan is this from now on. */
enum status test_experts_sum(const struct test_experts *t, struct backend *be, size_t layer,
                             size_t n_rows, size_t top_k, int32_t *idx, float *prob, float *x,
                             float *y);

struct backend *test_cpu_new(size_t n_threads); /* with float32 activations */
uint32_t test_random(uint32_t *seed);           /* the next; *seed is not 0 */

struct card_slot {
    int layer, expert; /* -1: none */
    const uint8_t *block;
};

struct card {
    struct backend base;
    struct expert_home *home; /* open, or NULL */
    struct expert_mail mail[CARD_LAYERS_MAX];
    struct card_slot slots[CARD_SLOTS_MAX];
    struct expert_orders orders; /* of the last step */
    size_t n_inserted;           /* by expert_insert */
    size_t fail_insert_at;       /* the insertion that fails, counted from 1; 0: none */
    double fetch_us, layer_us;   /* made-up times; 0: none */
    bool refuses_open;
};

void card_init(struct card *c);
void card_release(struct card *c);

/* What a step did besides the report. */
struct card_step {
    struct expert_insertion insertions[EXPERT_HOME_VICTIMS];
    int32_t *idx;      /* [layers][n_rows][top_k] choices, the caller's */
    const float *x;    /* [layers][n_rows][hidden] */
    const float *prob; /* as idx */
    float *y;          /* [layers][n_rows][hidden] the answers; zeros where nothing was asked */
    struct expert_report report;
};

/* One small step: begin, every layer, end. False: an answer did not come in time. */
bool card_run(struct card *c, struct card_step *s, size_t n_rows);
int card_find(const struct card *c, size_t layer, size_t expert); /* slot or -1 */

#endif
