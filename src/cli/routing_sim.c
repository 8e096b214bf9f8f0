/* routing_sim.c - see routing_sim.h.
 *
 * Every (stream, layer) has a generator of its own, so that the order in which layers and streams ask
 * does not matter, and a prediction is a look ahead: a copy of the generator that is thrown away. */
#include "cli/routing_sim.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum {
    TOP_K_MAX = 64,
    EXPERTS_MAX = 65536,
    PLACES_MAX = 1 << 24, /* streams x layers x experts: 32 MiB of orders */
};

static const double STAY = 0.2, POPULARITY_POWER = 2.2, PREDICTED_RIGHT = 0.807;
static const double POPULARITY_OFFSET = 1.0 / 16; /* of the number of experts */

struct place { /* a layer of a stream */
    uint64_t random;
    bool has_previous;
    int32_t previous[TOP_K_MAX];
};

struct routing_sim {
    enum routing_kind kind;
    struct routing_shape shape;
    struct place *places; /* [n_streams][n_layers] */
    uint16_t *orders;     /* [n_streams][n_layers][n_experts], LOCAL: experts by popularity */
    double *up_to;        /* [n_experts] LOCAL: share of the ranks up to and including this one */
};

enum routing_kind routing_named(const char *name)
{
    return strcmp(name, "uniform") == 0 ? ROUTING_UNIFORM
           : strcmp(name, "local") == 0 ? ROUTING_LOCAL
                                        : ROUTING_MODEL;
}

/* SplitMix64: good enough here, and one word of state. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double next_unit(uint64_t *state) /* [0, 1) */
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

static size_t next_below(uint64_t *state, size_t n)
{
    return (size_t)(next_unit(state) * (double)n);
}

static void popularity_fill(double *up_to, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += pow((double)i + 1 + POPULARITY_OFFSET * (double)n, -POPULARITY_POWER);
        up_to[i] = sum;
    }
    for (size_t i = 0; i < n; i++) {
        up_to[i] /= sum;
    }
    up_to[n - 1] = 1;
}

static void shuffle(uint16_t *order, size_t n, uint64_t *random)
{
    for (size_t i = 0; i < n; i++) {
        order[i] = (uint16_t)i;
    }
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = next_below(random, i + 1);
        uint16_t other = order[j];

        order[j] = order[i];
        order[i] = other;
    }
}

static enum status sim_make(struct routing_sim *r, uint64_t seed, struct error *err)
{
    const struct routing_shape *s = &r->shape;
    size_t n_places = s->n_streams * s->n_layers;

    r->places = calloc(n_places, sizeof *r->places);
    if (r->kind == ROUTING_LOCAL) {
        r->orders = calloc(n_places * s->n_experts, sizeof *r->orders);
        r->up_to = calloc(s->n_experts, sizeof *r->up_to);
    }
    if (!r->places || (r->kind == ROUTING_LOCAL && (!r->orders || !r->up_to))) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a routing of %zu sequences",
                         s->n_streams);
    }
    if (r->up_to) {
        popularity_fill(r->up_to, s->n_experts);
    }
    for (size_t i = 0; i < n_places; i++) {
        r->places[i].random = next_random(&seed);
        if (r->orders) {
            shuffle(r->orders + i * s->n_experts, s->n_experts, &r->places[i].random);
        }
    }
    return OK;
}

enum status routing_sim_new(struct routing_sim **out, enum routing_kind kind,
                            const struct routing_shape *shape, uint64_t seed, struct error *err)
{
    struct routing_sim *r;
    size_t n;
    enum status rc;

    *out = NULL;
    assert(kind != ROUTING_MODEL);
    if (shape->top_k == 0 || shape->top_k > TOP_K_MAX || shape->top_k > shape->n_experts ||
        shape->n_experts > EXPERTS_MAX || !size_mul(&n, shape->n_streams, shape->n_layers) ||
        !size_mul(&n, n, shape->n_experts) || n == 0 || n > PLACES_MAX) {
        return error_set(err, ERR_LIMIT,
                         "no made-up routing for %zu sequences, %zu layers, %zu of %zu experts",
                         shape->n_streams, shape->n_layers, shape->top_k, shape->n_experts);
    }
    r = calloc(1, sizeof *r);
    if (!r) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a routing");
    }
    r->kind = kind;
    r->shape = *shape;
    rc = sim_make(r, seed, err);
    if (rc != OK) {
        routing_sim_free(r);
        return rc;
    }
    *out = r;
    return OK;
}

void routing_sim_free(struct routing_sim *r)
{
    if (!r) {
        return;
    }
    free(r->places);
    free(r->orders);
    free(r->up_to);
    free(r);
}

static bool holds(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

static size_t rank_of(const double *up_to, size_t n, double share)
{
    size_t low = 0, high = n - 1;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (up_to[middle] > share) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Draws until top_k are distinct. top_k is small against the number of experts as a rule; where it is not,
 * unpopular experts may take some hundred draws. */
static void choose_one(const struct routing_sim *r, struct place *p, const uint16_t *order,
                       int32_t *out)
{
    size_t n = 0, top_k = r->shape.top_k, n_experts = r->shape.n_experts;

    for (size_t i = 0; r->kind == ROUTING_LOCAL && p->has_previous && i < top_k; i++) {
        if (next_unit(&p->random) < STAY) {
            out[n++] = p->previous[i];
        }
    }
    while (n < top_k) {
        int32_t id = order ? order[rank_of(r->up_to, n_experts, next_unit(&p->random))]
                           : (int32_t)next_below(&p->random, n_experts);

        if (!holds(out, n, id)) {
            out[n++] = id;
        }
    }
    memcpy(p->previous, out, top_k * sizeof *out);
    p->has_previous = true;
}

static size_t place_of(const struct routing_sim *r, size_t stream, size_t layer)
{
    assert(stream < r->shape.n_streams && layer < r->shape.n_layers);
    return stream * r->shape.n_layers + layer;
}

static const uint16_t *order_of(const struct routing_sim *r, size_t place)
{
    return r->orders ? r->orders + place * r->shape.n_experts : NULL;
}

void routing_sim_choose(struct routing_sim *r, size_t stream, size_t layer, size_t n_tokens,
                        int32_t *idx)
{
    size_t place = place_of(r, stream, layer);

    for (size_t t = 0; t < n_tokens; t++) {
        choose_one(r, &r->places[place], order_of(r, place), idx + t * r->shape.top_k);
    }
}

/* Each expert is right with the given probability, else one that was not chosen. With no other expert
 * left there is nothing to be wrong about. */
static void spoil(const struct routing_sim *r, int32_t *ids, uint64_t *random)
{
    int32_t chosen[TOP_K_MAX];
    size_t top_k = r->shape.top_k, n_experts = r->shape.n_experts;

    memcpy(chosen, ids, top_k * sizeof *ids);
    for (size_t i = 0; i < top_k && 2 * top_k <= n_experts; i++) {
        if (next_unit(random) < PREDICTED_RIGHT) {
            continue;
        }
        do {
            ids[i] = (int32_t)next_below(random, n_experts);
        } while (holds(chosen, top_k, ids[i]) || holds(ids, i, ids[i]));
    }
}

void routing_sim_predict(const struct routing_sim *r, size_t stream, size_t layer, size_t n_tokens,
                         int32_t *idx)
{
    size_t place = place_of(r, stream, layer);
    struct place ahead = r->places[place];
    uint64_t random = ~ahead.random;

    for (size_t t = 0; t < n_tokens; t++) {
        choose_one(r, &ahead, order_of(r, place), idx + t * r->shape.top_k);
        spoil(r, idx + t * r->shape.top_k, &random);
    }
}

bool routing_sim_hook(void *ctx, const struct op *op, const struct step *step, size_t n_rows,
                      int32_t *idx)
{
    struct routing_sim *r = ctx;

    (void)n_rows;
    for (size_t i = 0; i < step->n_spans; i++) {
        const struct span *s = &step->spans[i];

        routing_sim_choose(r, (size_t)s->slot, (size_t)op->layer, s->n_rows,
                           idx + s->row * r->shape.top_k);
    }
    return true;
}
