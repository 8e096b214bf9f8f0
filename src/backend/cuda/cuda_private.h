/* cuda_private.h - what the backend itself keeps, beside what families of operations see.
 *
 * Place: backend/cuda; for cuda_backend.c, cuda_launch.c, cuda_memory.c, cuda_steps.c and cuda_graph.c.
 *        Families include cuda_internal.h only. */
#ifndef BACKEND_CUDA_CUDA_PRIVATE_H
#define BACKEND_CUDA_CUDA_PRIVATE_H

#include "backend/cuda/cuda_forced.h"
#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/cuda_offload.h"

enum {
    CUDA_FAMILIES_MAX = 32,
    CUDA_GRAPHS_MAX = 64,       /* captured steps that are kept; the least recently used one goes */
    CUDA_ALIGN = 256,           /* of buffers, constants and scratch */
    CUDA_WRITE_HALF = 32 << 20, /* bytes of each of the two halves that uploads pass through */
    CUDA_READ_PIECES = 8,       /* of CUDA_READ_PIECE bytes at the most, on their way to the host */
    CUDA_READ_PIECE = 1 << 20,
    /* Page numbers of a step. More than any card's cache holds, unless very many sequences share very
     * long beginnings; such a step is refused, and the engine then runs its sequences one by one. */
    CUDA_PAGES_MAX = 256 * 1024,
};

/* The functions of a family, found in the modules. */
struct cuda_loaded {
    const struct cuda_family *family;
    CUfunction *functions;
    size_t *shared_allowed; /* dynamic shared bytes that a function may be launched with */
};

/* What of a step decides which launches it becomes. */
struct cuda_graph_key {
    size_t n_rows, n_out_rows, context_max; /* rounded up as struct cuda_shape has them */
    bool has_margin, has_forced, has_forced_next;
};

struct cuda_graph {
    struct cuda_graph_key key;
    CUgraphExec exec;
    uint64_t last_use;
};

struct cuda_chunk { /* of device memory that constants are cut from */
    struct cuda_chunk *next;
    CUdeviceptr data;
    size_t used, size;
};

struct cuda_unit { /* of a plan: the ops from its place on that small decode steps run as one */
    const struct cuda_fusion *fusion; /* or NULL */
    size_t n_ops;
    void *data;
};

struct cuda_private {
    struct cuda_driver *opened; /* the table, if it is ours */
    size_t memory_limit;        /* 0: none */
    bool no_graphs, no_fusions;
    bool is_lost; /* after an error that the driver does not come back from */
    struct error lost;

    CUmodule *modules;
    size_t n_modules;
    struct cuda_named {
        const char *name; /* the driver's */
        CUfunction function;
    } * named; /* all functions of the modules, as far as the driver lists them */
    size_t n_named;
    struct cuda_loaded loaded[CUDA_FAMILIES_MAX];
    size_t n_loaded;
    bool is_capturing;
    bool has_joined; /* the stream's next launch follows another stream's work too */

    /* The plan: ops is the caller's array, data[i] what op i's family left in prepare(). */
    const struct op *ops;
    size_t n_ops;
    void **data;
    struct cuda_unit *units; /* [n_ops] */
    struct cuda_chunk *constants;
    bool is_measuring; /* no card is asked: constants are only counted (cuda_measure.c) */
    size_t measured_bytes;
    float *hook_buffer; /* choices and probabilities on the host, for route_hook; or NULL */

    /* Tables of the step: the same layout in pinned host memory and on the card. */
    uint8_t *tables;
    CUdeviceptr device_tables;
    size_t pages_max;
    struct cuda_shape shape;
    size_t step_rows, step_out_rows; /* really, not rounded up */
    size_t bad_at, margin_at;        /* where these two are in the tables */
    size_t results_bytes;            /* from bad_at on: what a step brings back */
    bool step_is_open;
    uint64_t n_steps; /* begun so far */

    /* Experts that overflow (expert_home.h); NULL: no home is open. */
    uint8_t *expert_slots;         /* device memory: n_slots blocks; of cuda_offload.c */
    struct cuda_stream *streaming; /* cuda_stream.c */
    struct cuda_forced forced;
    struct cuda_offload offload;

    struct cuda_graph graphs[CUDA_GRAPHS_MAX];
    size_t n_graphs;
    uint64_t n_uses;
    struct state_pools graph_pools; /* whose addresses the graphs hold */

    uint8_t *write_half[2];
    CUevent write_done[2];
    bool write_is_pending[2];
    size_t write_at, write_used; /* which half, and its bytes in use */
    uint8_t *read_pieces;
    CUevent read_done[CUDA_READ_PIECES];
};

const struct cuda_family *cuda_family_of(enum op_kind kind); /* NULL: none */
/* The i-th; NULL past the last. */
const struct cuda_fusion *cuda_fusion_at(size_t i);

/* ---- calls and errors (cuda_launch.c) ---- */

/* "WHAT: CUDA_ERROR_X (text)" when r is an error, else OK. ERR_NO_MEMORY for want of memory, ERR_DEVICE for
 * errors that end the device's use: the backend is lost then. Everything else is ERR_INTERNAL. */
enum status cuda_result(struct cuda_backend *be, CUresult r, struct error *err, const char *what,
                        ...) __attribute__((format(printf, 4, 5)));

/* Before any call from a thread: ERR_DEVICE with the first text when the backend is lost; else makes its
 * context this thread's. */
enum status cuda_enter(struct cuda_backend *be, struct error *err);

/* Until the stream is idle. */
enum status cuda_wait(struct cuda_backend *be, struct error *err);

enum status cuda_modules_load(struct cuda_backend *be, struct error *err);
void cuda_modules_free(struct cuda_backend *be);

/* Finds the family's functions, once; ERR_UNSUPPORTED names one that is in no module. */
enum status cuda_family_load(struct cuda_backend *be, const struct cuda_family *family,
                             struct error *err);

/* cuda_launch() on another stream, after all that this has. */
enum status cuda_launch_on(struct cuda_backend *be, CUstream stream,
                           const struct cuda_family *family, size_t kernel, struct cuda_grid grid,
                           const void *args, struct error *err);

/* ---- memory (cuda_memory.c) ---- */

/* n_bytes (0 counts as 1) of device memory, 256-byte aligned, not cleared; refuses to pass the limit. */
enum status cuda_alloc(struct cuda_backend *be, CUdeviceptr *out, size_t n_bytes, const char *what,
                       struct error *err);
void cuda_constants_free(struct cuda_backend *be);
enum status cuda_staging_new(struct cuda_backend *be, struct error *err);
void cuda_staging_free(struct cuda_backend *be);
enum status cuda_write(struct cuda_backend *be, void *dst, const void *host, size_t n_bytes,
                       struct error *err);
/* The same with the threads of a pool. */
enum status cuda_upload(struct cuda_backend *be, void *dst, const void *host, size_t n_bytes,
                        struct pool *pool, struct error *err);
/* Whether the card's copies and kernels now reach the memory at its own address. */
bool cuda_pin(struct cuda_backend *be, void *data, size_t n_bytes);
enum status cuda_read(struct cuda_backend *be, void *host, const void *src, size_t n_bytes,
                      struct error *err);

/* ---- steps (cuda_steps.c) ---- */

/* Memory for the tables of a plan of rows_max and context_max; and its size. */
size_t cuda_tables_bytes(const struct cuda_backend *be, size_t *pages_max);
enum status cuda_tables_new(struct cuda_backend *be, struct error *err);
void cuda_tables_free(struct cuda_backend *be);
enum status cuda_step_begin(struct cuda_backend *be, const struct step *step, struct error *err);
enum status cuda_step_end(struct cuda_backend *be, const struct step *step, struct error *err);

/* Sizes that launches are made for: decode steps of similar size share one, so that few graphs serve them
 * all. Both are at least n, at most max. */
size_t cuda_rows_bucket(size_t n, size_t max);
size_t cuda_context_bucket(size_t n, size_t max);

/* ---- running (cuda_backend.c, cuda_graph.c) ---- */

enum status cuda_run_op(struct cuda_backend *be, const struct op *op,
                        const struct state_pools *state, struct error *err);
enum status cuda_run_step(struct cuda_backend *be, const struct state_pools *state,
                          struct error *err);
void cuda_graphs_free(struct cuda_backend *be);

#endif
