/* backend.h - the operations that a device offers, as data.
 *
 * Place:  backend; what model/ sees of any device. A model is compiled once, at start, into a list
 *         of struct op whose operands are fixed buffers; a step runs the list over a batch.
 * Dtypes: every operand carries its type. check() is called for each op when the plan is built and
 *         refuses an unsupported combination with the op's name; run() never meets one.
 * Values: matrices are [rows][cols], row-major, row stride = cols. `act` is the activations' compute
 *         type: a buffer of it holds float32 words on the CPU whose values were rounded to it
 *         (operand.dtype says F32 for storage, operand.round says the value type).
 * Determinism (CPU): what an op computes for one row depends on that row, its sequence's state and
 *         its position only: not on other rows, their number, or the thread count. Sums over k run in
 *         one fixed order per instruction set. So text is the same in any company. */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/weight.h"
#include "base/status.h"
#include "base/tensor.h"

enum { STEP_SPANS_MAX = 4096, KV_PAGE_TOKENS = 64 };

struct operand { /* a matrix buffer of the plan */
    void *data;
    enum dtype dtype; /* storage: F32 or I32 on the CPU */
    enum dtype round; /* values are rounded to this type when written: F32, F16, BF16 */
    size_t cols;
};

/* The state that ops read and write. Pools are allocated at load; a sequence names its places.
 * Per GDN layer l (0-based among GDN layers) and slot s:
 *   conv      [taps-1][channels]  oldest column first, raw conv inputs
 *   recurrent [nv][dk][dv]
 * Per attention layer l and page p:
 *   k, v [n_kv_heads][KV_PAGE_TOKENS][head_dim]
 *   k_scale, v_scale [n_kv_heads][KV_PAGE_TOKENS] f32, only for fp8: value = stored * scale */
struct state_pools {
    enum dtype conv_dtype, recurrent_dtype, kv_dtype;
    size_t n_slots, n_pages, n_gdn_layers, n_attn_layers;
    size_t conv_elems, recurrent_elems; /* per layer and slot */
    size_t kv_elems;           /* per layer and page: n_kv_heads * KV_PAGE_TOKENS * head_dim */
    size_t kv_scales;          /* per layer and page: n_kv_heads * KV_PAGE_TOKENS, 0 if not fp8 */
    uint8_t *conv, *recurrent; /* [layer][slot][elems] */
    uint8_t *k, *v;            /* [layer][page][elems] */
    float *k_scale, *v_scale;  /* [layer][page][scales] or NULL */
};

/* One sequence's part of a step: rows [row, row + n_rows) of every ROWS_ALL buffer. */
struct span {
    size_t row, n_rows;
    size_t position;      /* tokens of the sequence before this span (also the RoPE position) */
    int32_t slot;         /* of conv and recurrent state */
    const int32_t *pages; /* pages[i] holds tokens [i*64, i*64+64); covers position + n_rows */
    bool state_is_zero;   /* nothing before: the slot's content must not be read */
};

struct op;
struct step;

/* For benchmarks: sees the choices of every OP_ROUTE and may replace them. idx is [n_rows][top_k] in
 * host memory; whoever replaces keeps the ids of a row distinct and below n_experts. Returns whether it
 * replaced them: then every chosen expert weighs 1 / top_k. Called on the thread that runs the step. */
typedef bool route_hook_fn(void *ctx, const struct op *op, const struct step *step, size_t n_rows,
                           int32_t *idx);

struct step {
    size_t n_rows;
    const int32_t *tokens; /* [n_rows] */
    const struct span *spans;
    size_t n_spans;
    const int32_t *out_rows; /* rows whose logits are wanted */
    size_t n_out_rows;
    int16_t *bad_layer; /* [n_rows], set to -1 by the caller; OP_CHECK writes the first layer with a
                            value that is not finite */
    float *router_margin; /* [n_rows] or NULL: smallest (k-th minus next) probability over layers;
                             set to INFINITY by the caller */
    route_hook_fn *route_hook; /* or NULL */
    void *route_ctx;
    /* For benchmarks of decode steps on a device, or NULL: choices [OP_ROUTEs of the plan][n_rows][top_k]
     * in place of the router's, each of weight 1 / top_k; and what a predictor said of them before. */
    const int32_t *forced_idx, *forced_next;
};

enum op_kind {
    OP_EMBED,      /* x[row] = table[token] */
    OP_NORM,       /* out = x * rsqrt(mean(x^2) + eps) * weight */
    OP_LINEAR,     /* out_i = W_i x (+ out_i) for up to four matrices with one input */
    OP_CONV,       /* causal depthwise conv + silu, conv state carried */
    OP_DELTA,      /* gates, l2 norm, gated delta rule, gated norm */
    OP_QKV,        /* q and k norm, partial rope, KV write */
    OP_ATTENTION,  /* causal attention over the pages, times sigmoid(gate) */
    OP_ROUTE,      /* router logits, softmax, top-k */
    OP_EXPERTS,    /* out = sum of routed experts */
    OP_SWIGLU,     /* out = silu(gate) * up */
    OP_ADD_SHARED, /* x += routed + sigmoid(g) * shared */
    OP_CHECK,      /* note rows of x that are not finite */
    OP_GATHER,     /* out[i] = x[out_rows[i]] */
    OP_BEST,       /* each row's largest values and where they are, and whether all are finite */
    OP_KIND_COUNT
};

enum op_rows { ROWS_ALL, ROWS_OUT }; /* how many rows the op works on */

struct op_embed {
    struct weight table; /* dense */
    struct operand out;
};
struct op_norm {
    struct operand in, out;
    const float *weight; /* [cols] float32; zero-centred weights already hold 1 + w */
    float eps;
};
enum { LINEAR_PARTS_MAX = 4 };
struct op_linear {
    struct operand in;
    size_t n_parts;
    struct {
        struct weight w;
        struct operand out;
        bool accumulates; /* out += W x (out not rounded then: it is the float32 residual) */
    } part[LINEAR_PARTS_MAX];
};
struct op_conv {
    struct operand in, out;
    const float *weight; /* [taps][channels] float32 */
    size_t taps, channels;
    size_t gdn_layer;
};
struct op_delta {
    struct operand qkv;     /* conv output: q [nk*dk] | k [nk*dk] | v [nv*dv] */
    struct operand z;       /* [nv*dv] output gate */
    struct operand a, b;    /* [nv] */
    struct operand out;     /* [nv*dv] */
    const float *neg_exp_a; /* [nv] -exp(A_log) */
    const float *dt_bias;   /* [nv] */
    const float *norm;      /* [dv] plain weight */
    float eps;
    size_t nk, nv, dk, dv;
    size_t gdn_layer;
    /* Spans with at least this many rows use the chunked form, in chunks of 64 from the span's start.
     * So a prompt gives the same bits however it is cut at multiples of 64, and the same within
     * rounding however else; who wants the former must not let other sequences move the cuts. */
    size_t chunk_min;
};
struct op_qkv {
    struct operand q;    /* [nq*2*hd] query|gate per head when gated, else [nq*hd]; q is normed and
                            rotated in place */
    struct operand k, v; /* [nkv*hd] */
    const float *q_norm, *k_norm; /* [hd], hold 1 + w */
    float eps;
    bool is_gated;
    size_t nq, nkv, hd, rope_dims;
    const float *inv_freq; /* [rope_dims/2] */
    float rope_scale;      /* multiplies cos and sin (yarn attention factor); 1 */
    size_t attn_layer;
};
struct op_attention {
    struct operand q;   /* after OP_QKV */
    struct operand out; /* [nq*hd] */
    bool is_gated;
    size_t nq, nkv, hd;
    float scale;
    size_t attn_layer;
};
struct op_route {
    struct operand in;
    struct weight router; /* [E][H] */
    struct operand idx;   /* I32 [top_k] expert ids, by falling probability, ties to the lower id */
    struct operand prob;  /* F32 [top_k] */
    size_t n_experts, top_k;
    bool renormalise;
};
struct expert_weights {
    struct weight gate, up, down;
};
struct expert_home;

struct op_experts {
    struct operand in, idx, prob;
    struct operand out; /* F32: sum over the chosen experts, in the order of idx */
    const struct expert_weights *experts; /* [n_experts] */
    size_t n_experts, top_k, width;       /* width: expert intermediate size */
    const struct expert_home
        *home; /* or NULL: `experts` are where the device computes. Else they are the
                                       home's blocks on the host, and its layer is home_layer. On the
                                       CPU: choices of -1 are somebody else's and left out */
    size_t home_layer;
};
struct op_swiglu {
    struct operand gate, up, out;
};
struct op_add_shared {
    struct operand x; /* residual, += */
    struct operand routed;
    struct operand shared; /* cols 0: no shared expert */
    struct operand gate;   /* [1] before the sigmoid; cols 0: no gate */
};
struct op_check {
    struct operand x;
};
struct op_gather {
    struct operand in, out;
};
/* What OP_BEST says of a row. Ids by falling value, equal ones by rising id; -0 counts as 0. Where a row has
 * fewer values, and everywhere when one is not finite, ids are -1 and values -INFINITY. */
enum { BEST_TOP = 64 };
struct best_row {
    int32_t ids[BEST_TOP];
    float values[BEST_TOP];
};
struct op_best {
    struct operand in;  /* float32 */
    struct operand out; /* I32 [2 * BEST_TOP]: a struct best_row */
};

struct op {
    enum op_kind kind;
    enum op_rows rows;
    int16_t layer;      /* model layer, -1 outside */
    const char *name;   /* "in_proj", "o_proj": static */
    const char *kernel; /* filled by check(): the kernel that will run, "linear bf16 avx2" */
    union {
        struct op_embed embed;
        struct op_norm norm;
        struct op_linear linear;
        struct op_conv conv;
        struct op_delta delta;
        struct op_qkv qkv;
        struct op_attention attention;
        struct op_route route;
        struct op_experts experts;
        struct op_swiglu swiglu;
        struct op_add_shared add_shared;
        struct op_check check;
        struct op_gather gather;
        struct op_best best;
    } u;
};

struct backend;
struct pool;

struct backend_ops {
    const char *name; /* "cpu" */
    enum status (*check)(struct backend *be, struct op *op, struct error *err);
    /* Size scratch for the plan: called once after all ops were checked. rows_max and context_max
     * bound every later step. No allocation happens after this. */
    enum status (*prepare)(struct backend *be, const struct op *ops, size_t n_ops, size_t rows_max,
                           size_t context_max, struct error *err);
    enum status (*run)(struct backend *be, const struct op *op, const struct step *step,
                       const struct state_pools *state, struct error *err);
    void *(*buffer_new)(struct backend *be,
                        size_t n_bytes); /* zeroed, 64-byte aligned; NULL: none left */
    void (*buffer_free)(struct backend *be, void *data);
    void (*copy)(struct backend *be, void *dst, const void *src,
                 size_t n_bytes); /* within the device */
    void (*read)(struct backend *be, void *host, const void *src, size_t n_bytes);
    void (*write)(struct backend *be, void *dst, const void *host, size_t n_bytes);
    void (*free)(struct backend *be); /* destroys the backend */
    /* Between runs the workers stay awake until told otherwise: for who must answer within microseconds.
     * NULL: there are none. */
    void (*awake)(struct backend *be, bool is_awake);

    /* For devices with their own memory and queue; all NULL on the CPU.
     * begin  before the first run() of a step: brings its tables to the device
     * end    after the last: waits, and fills the step's bad_layer and router_margin
     * wait   until the device has done what was asked (for clocks around single ops)
     * host_new  host memory that the device's copies reach without a detour; NULL: none left
     * read_later  like read() into such memory, but only after end() it has arrived
     * write_later  like write() from such memory, which must stay as it is until end() or wait()
     * run_all  all ops of the prepared plan, between begin and end; the same results as run() on each,
     *        faster. Not with a route_hook. */
    enum status (*begin)(struct backend *be, const struct step *step, struct error *err);
    enum status (*end)(struct backend *be, const struct step *step, struct error *err);
    enum status (*wait)(struct backend *be, struct error *err);
    void *(*host_new)(struct backend *be, size_t n_bytes);
    void (*host_free)(struct backend *be, void *data);
    void (*read_later)(struct backend *be, void *host, const void *src, size_t n_bytes);
    void (*write_later)(struct backend *be, void *dst, const void *host, size_t n_bytes);
    enum status (*run_all)(struct backend *be, const struct step *step,
                           const struct state_pools *state, struct error *err);

    /* Experts that overflow (expert_home.h); NULL: the device has no way for it.
     * experts_open  makes slots, tables and mail of one home, before the first check(); they stay until the
     *        backend's end or another experts_open. NULL: gives them back.
     * expert_insert  the expert's block into a slot, in order with steps; what was there has none then */
    enum status (*experts_open)(struct backend *be, struct expert_home *home, struct error *err);
    enum status (*expert_insert)(struct backend *be, size_t layer, size_t expert, size_t slot,
                                 struct error *err);

    /* For loading; each may be NULL (the two of pinning together).
     * upload  like write(), while threads of `pool` (or NULL) share the work
     * host_pin  the device's copies and kernels reach [data, data + n_bytes), which begins at a page's
     *        border, at its own address, as if it were of host_new; false: that is not possible and
     *        nothing has changed. host_unpin comes before the memory is freed. */
    void (*upload)(struct backend *be, void *dst, const void *host, size_t n_bytes,
                   struct pool *pool);
    bool (*host_pin)(struct backend *be, void *data, size_t n_bytes);
    void (*host_unpin)(struct backend *be, void *data);
};

struct backend {
    const struct backend_ops *ops; /* first member of every backend */
};

const char *op_kind_name(enum op_kind kind);

/* One line for the plan print-out: layer, name, kernel, operand types. */
void op_describe(char *out, size_t n, const struct op *op);

#endif
