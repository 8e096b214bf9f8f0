/* cuda_internal.h - the inside of the CUDA backend: families of operations, launches, memory.
 *
 * Place: backend/cuda; private. An op family is a C file (cuda_linear.c) with its kernels
 *        (kernels/linear_*.cu) and the struct both share (kernels/linear_args.h).
 * Order: everything runs on one stream, in order. */
#ifndef BACKEND_CUDA_CUDA_INTERNAL_H
#define BACKEND_CUDA_CUDA_INTERNAL_H

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_driver.h"
#include "backend/cuda/kernels/step_args.h"

/* How large a step is: what launches are sized by. In a captured step these are upper bounds, so nothing
 * may be computed from them that changes a result; tables hold the truth. */
struct cuda_shape {
    size_t n_rows, n_out_rows, n_spans;
    size_t span_rows_max; /* of the longest span */
    size_t context_max;   /* largest position + n_rows of a span */
    bool is_decode;       /* every span is one row: span i is row i */
    struct step_view view;
};

/* Rows that the op works on, at the most. */
size_t cuda_op_rows(const struct op *op, const struct cuda_shape *shape);

struct cuda_backend;

/* How many OP_ROUTEs of the prepared plan come before this one (cuda_families.c). */
size_t cuda_route_layer(const struct cuda_backend *be, const struct op *op);

/* What an op needs besides its operands. */
struct cuda_need {
    size_t scratch_bytes; /* of the scratch that all ops share, free between ops */
};

struct cuda_family {
    const char *const *kernels; /* names of the functions it launches, by its own enum */
    size_t n_kernels;
    /* Refuses with ERR_UNSUPPORTED, naming the op; sets op->kernel to a static text. */
    enum status (*check)(struct cuda_backend *be, struct op *op, struct error *err);
    /* For a plan of at most be->rows_max rows and be->context_max tokens. May allocate constants on the
     * device (cuda_constant) and leave one pointer for run(). NULL: nothing is needed. */
    enum status (*prepare)(struct cuda_backend *be, const struct op *op, struct cuda_need *need,
                           void **data, struct error *err);
    enum status (*run)(struct cuda_backend *be, const struct op *op, void *data,
                       const struct cuda_shape *shape, const struct state_pools *state,
                       struct error *err);
};

extern const struct cuda_family cuda_embed, cuda_norm, cuda_linear, cuda_conv, cuda_delta, cuda_qkv,
    cuda_attention, cuda_route, cuda_experts, cuda_swiglu, cuda_add_shared, cuda_rows_check,
    cuda_gather, cuda_best;

/* Neighbouring ops of a plan that small decode steps run as one: such a step is hundreds of kernels that
 * take two microseconds whatever they do. Results agree with the ops one by one within rounding; the same
 * step always takes the same way, captured or not. Only run_all() takes it. */
struct cuda_fusion {
    const struct cuda_family *family; /* for its kernels alone */
    /* How many of the n ops from `ops` on it does as one, 0 if they are not its pattern. All were checked. */
    size_t (*match)(const struct cuda_backend *be, const struct op *ops, size_t n);
    /* As of a family; op_data[i] is what op i's own family left. NULL: nothing is needed. */
    enum status (*prepare)(struct cuda_backend *be, const struct op *ops, void *const *op_data,
                           struct cuda_need *need, void **data, struct error *err);
    /* Whether it takes a decode step of this size; from what is part of a graph's key only. */
    bool (*fits)(const struct cuda_backend *be, const struct op *ops,
                 const struct cuda_shape *shape);
    enum status (*run)(struct cuda_backend *be, const struct op *ops, void *data,
                       void *const *op_data, const struct cuda_shape *shape,
                       const struct state_pools *state, struct error *err);
};

/* Asked in this order (cuda_families.c); the first that matches has the ops. */
extern const struct cuda_fusion cuda_fuse_moe, cuda_fuse_gdn, cuda_fuse_attention, cuda_fuse_linear;

struct cuda_backend {
    struct backend base;
    const struct cuda_driver *drv;
    struct cuda_card card;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    size_t rows_max, context_max; /* of the prepared plan */
    void *scratch;                /* device memory of scratch_bytes, 256-byte aligned */
    size_t scratch_bytes;
    struct cuda_private *own; /* modules, functions, constants, tables, graphs: cuda_backend.c */
};

struct cuda_grid {
    unsigned x, y, z;    /* blocks; 0 counts as 1 */
    unsigned threads;    /* of a block, in x */
    size_t shared_bytes; /* dynamic; up to card.shared_bytes_max */
};

/* Launch family->kernels[kernel] with the one struct it takes. A failed launch names the kernel and the
 * sizes. A grid with too many blocks is ERR_LIMIT. */
enum status cuda_launch(struct cuda_backend *be, const struct cuda_family *family, size_t kernel,
                        struct cuda_grid grid, const void *args, struct error *err);

/* Whether kernels can load 16 bytes at a time from here on. True of NULL too: an operand that is not there. */
static inline bool cuda_is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Set n_bytes of device memory to zero, in stream order. */
enum status cuda_zero(struct cuda_backend *be, void *data, size_t n_bytes, struct error *err);

/* Device memory that holds a copy of host data (NULL: zeros), 256-byte aligned, until the next prepare()
 * or the backend's end. NULL: no memory, err is filled. Only in prepare(). */
void *cuda_constant(struct cuda_backend *be, const void *host, size_t n_bytes, struct error *err);

/* "op 'o_proj' of layer 3: TEXT" with ERR_UNSUPPORTED. */
enum status cuda_refuse(struct error *err, const struct op *op, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The checks that families share: a float32 buffer of so many columns whose values have one of the
 * activation types; one that is not rounded; a matrix of n_in inputs that the card's kernels read. */
enum status cuda_check_operand(const struct op *op, const char *what, const struct operand *o,
                               size_t cols, struct error *err);
enum status cuda_check_exact(const struct op *op, const char *what, const struct operand *o,
                             size_t cols, struct error *err);
enum status cuda_check_weight(const struct op *op, const char *what, const struct weight *w,
                              size_t n_in, struct error *err);

#endif
