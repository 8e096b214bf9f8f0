/* cuda_graph.c - decode steps as graphs: a step's launches are recorded once and replayed as one.
 *
 * Place: backend/cuda. A step of a few rows is some six hundred short kernels; launched one by one they
 *        keep the processor busy for longer than the card. Steps of equal rounded sizes have equal
 *        launches, and all that differs between them is in the tables (cuda_steps.c), so a graph is kept
 *        for each set of sizes that came up.
 * Cost:  recording takes some milliseconds, at the first step of a size. A graph that cannot be made or
 *        does not fit the memory limit is no error: steps then run kernel by kernel, with the same
 *        results. */
#include <string.h>

#include "backend/cuda/cuda_private.h"
#include "backend/expert_home.h"

static enum status run_ops(struct cuda_backend *be, const struct state_pools *state,
                           struct error *err)
{
    const struct cuda_private *own = be->own;
    enum status rc = OK;

    for (size_t i = 0, n; rc == OK && i < own->n_ops; i += n) {
        const struct cuda_unit *u = &own->units[i];

        if (u->fusion && own->shape.is_decode && u->fusion->fits(be, &own->ops[i], &own->shape)) {
            n = u->n_ops;
            rc = u->fusion->run(be, &own->ops[i], u->data, &own->data[i], &own->shape, state, err);
        } else {
            n = 1;
            rc = cuda_run_op(be, &own->ops[i], state, err);
        }
    }
    /* Nothing to do but after an error: a capture cannot end while its branch is away. */
    return cuda_offload_join_ahead(be, rc == OK ? err : NULL) == OK || rc != OK ? rc : ERR_INTERNAL;
}

static bool key_equal(const struct cuda_graph_key *a, const struct cuda_graph_key *b)
{
    return a->n_rows == b->n_rows && a->n_out_rows == b->n_out_rows &&
           a->context_max == b->context_max && a->has_margin == b->has_margin &&
           a->has_forced == b->has_forced && a->has_forced_next == b->has_forced_next;
}

static struct cuda_graph *graph_find(struct cuda_private *own, const struct cuda_graph_key *key)
{
    for (size_t i = 0; i < own->n_graphs; i++) {
        if (key_equal(&own->graphs[i].key, key)) {
            return &own->graphs[i];
        }
    }
    return NULL;
}

void cuda_graphs_free(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;

    for (size_t i = 0; i < own->n_graphs; i++) {
        be->drv->graph_exec_destroy(own->graphs[i].exec);
    }
    own->n_graphs = 0;
}

/* A free place, or that of the graph that was not used for longest. */
static struct cuda_graph *graph_place(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;
    struct cuda_graph *oldest = &own->graphs[0];

    if (own->n_graphs < CUDA_GRAPHS_MAX) {
        return &own->graphs[own->n_graphs++];
    }
    for (size_t i = 1; i < own->n_graphs; i++) {
        if (own->graphs[i].last_use < oldest->last_use) {
            oldest = &own->graphs[i];
        }
    }
    be->drv->graph_exec_destroy(oldest->exec);
    return oldest;
}

/* Records the step's launches; NULL when that failed. Nothing has run then. */
static CUgraphExec capture(struct cuda_backend *be, const struct state_pools *state)
{
    const struct cuda_driver *drv = be->drv;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    bool is_good;

    if (drv->stream_begin_capture(be->stream, CUDA_CAPTURE_RELAXED) != CUDA_SUCCESS_) {
        return NULL;
    }
    be->own->is_capturing = true;
    is_good = run_ops(be, state, NULL) == OK;
    be->own->is_capturing = false;
    is_good = drv->stream_end_capture(be->stream, &graph) == CUDA_SUCCESS_ && is_good && graph;
    if (is_good && drv->graph_instantiate(&exec, graph, 0) != CUDA_SUCCESS_) {
        exec = NULL;
    }
    if (graph) {
        drv->graph_destroy(graph);
    }
    return exec;
}

static struct cuda_graph *graph_make(struct cuda_backend *be, const struct cuda_graph_key *key,
                                     const struct state_pools *state)
{
    size_t limit = be->own->memory_limit;
    CUgraphExec exec = capture(be, state);
    struct cuda_graph *g;

    if (exec && limit && cuda_backend_used(&be->base) > limit) {
        be->drv->graph_exec_destroy(exec);
        exec = NULL;
    }
    if (!exec) {
        be->own->no_graphs = true;
        return NULL;
    }
    g = graph_place(be);
    *g = (struct cuda_graph){.key = *key, .exec = exec};
    return g;
}

enum status cuda_run_step(struct cuda_backend *be, const struct state_pools *state,
                          struct error *err)
{
    struct cuda_private *own = be->own;
    struct cuda_graph_key key = {.n_rows = own->shape.n_rows,
                                 .n_out_rows = own->shape.n_out_rows,
                                 .context_max = own->shape.context_max,
                                 .has_margin = own->shape.view.router_margin != NULL,
                                 .has_forced = own->shape.view.forced != NULL,
                                 .has_forced_next = own->shape.view.forced_next != NULL};
    struct cuda_graph *g;

    /* Which experts a large step of a home streams, and from where, is another with each step. */
    if (own->no_graphs || !own->shape.is_decode ||
        (own->streaming && own->shape.n_rows > EXPERT_HOME_ROWS)) {
        return run_ops(be, state, err);
    }
    if (memcmp(&own->graph_pools, state, sizeof *state) != 0) {
        cuda_graphs_free(be);
        memcpy(&own->graph_pools, state, sizeof *state); /* as it is compared */
    }
    g = graph_find(own, &key);
    if (!g) {
        g = graph_make(be, &key, state);
    }
    if (!g) {
        return own->is_lost ? cuda_enter(be, err) : run_ops(be, state, err);
    }
    g->last_use = ++own->n_uses;
    return cuda_result(be, be->drv->graph_launch(g->exec, be->stream), err,
                       "cuGraphLaunch of a step of %zu rows", key.n_rows);
}
