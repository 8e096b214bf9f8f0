/* cuda_qkv.c - query and key norm, partial rotary embedding, and the write into the KV cache.
 *
 * Place: backend/cuda; the kernel is in kernels/qkv.cu. One kernel for all shapes and types: the op moves
 *        a few kilobytes for each row. */
#include "backend/cuda/cuda_kv.h"

_Static_assert((int)ATTENTION_PAGE == (int)KV_PAGE_TOKENS, "pages as backend.h has them");

enum { QKV_HEADS_MAX = 4096 };

static const char *const qkv_kernels[] = {"qkv"};

bool cuda_kv_is_fp8(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
}

static enum status broken(struct error *err, const struct op *op, const char *what)
{
    return error_set(err, ERR_INTERNAL, "%s '%s' of layer %d: %s", op_kind_name(op->kind),
                     op->name ? op->name : "?", op->layer, what);
}

enum status cuda_kv_cache(struct kv_cache *out, const struct op *op,
                          const struct state_pools *state, size_t layer, size_t nkv, size_t hd,
                          struct error *err)
{
    enum dtype t = state->kv_dtype;
    size_t first = layer * state->n_pages;

    if (layer >= state->n_attn_layers || state->kv_elems != nkv * KV_PAGE_TOKENS * hd) {
        return broken(err, op, "the KV pool has another shape");
    }
    if (cuda_kv_is_fp8(t)) {
        if (!state->k_scale || !state->v_scale || state->kv_scales != nkv * KV_PAGE_TOKENS) {
            return broken(err, op, "the KV pool has no scales");
        }
    } else if (t != DTYPE_F32 && t != DTYPE_F16 && t != DTYPE_BF16) {
        return broken(err, op, "the KV pool has a type that no kernel reads");
    }
    *out = (struct kv_cache){
        .k = state->k + first * state->kv_elems * dtype_bytes(t),
        .v = state->v + first * state->kv_elems * dtype_bytes(t),
        .k_scale = cuda_kv_is_fp8(t) ? state->k_scale + first * state->kv_scales : NULL,
        .v_scale = cuda_kv_is_fp8(t) ? state->v_scale + first * state->kv_scales : NULL,
        .dtype = t,
    };
    return OK;
}

enum status cuda_kv_check(const struct op *op, size_t nq, size_t nkv, size_t hd, struct error *err)
{
    if (op->rows != ROWS_ALL) {
        return cuda_refuse(err, op, "works on all rows of a step only");
    }
    if (nkv == 0 || hd == 0 || nq == 0 || nq % nkv != 0) {
        return cuda_refuse(err, op, "%zu query and %zu KV heads of %zu", nq, nkv, hd);
    }
    if (hd > ATTENTION_HEAD_MAX || nq > QKV_HEADS_MAX) {
        return cuda_refuse(err, op, "%zu heads of %zu, at most %d of %d are built", nq, hd,
                           QKV_HEADS_MAX, ATTENTION_HEAD_MAX);
    }
    return OK;
}

static enum status qkv_check(struct cuda_backend *be, struct op *op, struct error *err)
{
    const struct op_qkv *u = &op->u.qkv;
    enum status rc = cuda_kv_check(op, u->nq, u->nkv, u->hd, err);

    (void)be;
    if (rc == OK && (u->rope_dims > u->hd || u->rope_dims % 2 != 0)) {
        rc = cuda_refuse(err, op, "%zu rotary dims of heads of %zu", u->rope_dims, u->hd);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "q", &u->q, u->nq * u->hd * (u->is_gated ? 2 : 1), err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "k", &u->k, u->nkv * u->hd, err);
    }
    if (rc == OK) {
        rc = cuda_check_operand(op, "v", &u->v, u->nkv * u->hd, err);
    }
    if (rc == OK && (!u->q_norm || !u->k_norm || (u->rope_dims && !u->inv_freq))) {
        rc = cuda_refuse(err, op, "a norm weight or the frequencies are missing");
    }
    op->kernel = rc == OK ? "qkv cuda" : NULL;
    return rc;
}

enum status cuda_qkv_args(struct qkv_args *args, const struct op *op,
                          const struct cuda_shape *shape, const struct state_pools *state,
                          struct error *err)
{
    const struct op_qkv *u = &op->u.qkv;

    *args = (struct qkv_args){
        .view = shape->view,
        .q = u->q.data,
        .k = u->k.data,
        .v = u->v.data,
        .q_norm = u->q_norm,
        .k_norm = u->k_norm,
        .inv_freq = u->inv_freq,
        .eps = u->eps,
        .rope_scale = u->rope_scale,
        .nq = (int32_t)u->nq,
        .nkv = (int32_t)u->nkv,
        .hd = (int32_t)u->hd,
        .half = (int32_t)(u->rope_dims / 2),
        .q_stride = (int32_t)(u->is_gated ? 2 * u->hd : u->hd),
        .q_round = u->q.round,
        .k_round = u->k.round,
    };
    return cuda_kv_cache(&args->cache, op, state, u->attn_layer, u->nkv, u->hd, err);
}

static enum status qkv_run(struct cuda_backend *be, const struct op *op, void *data,
                           const struct cuda_shape *shape, const struct state_pools *state,
                           struct error *err)
{
    const struct op_qkv *u = &op->u.qkv;
    enum { WARPS = QKV_THREADS / 32 };
    size_t heads = shape->n_rows * (u->nq + 2 * u->nkv);
    struct qkv_args args;
    enum status rc = cuda_qkv_args(&args, op, shape, state, err);

    (void)data;
    if (rc != OK) {
        return rc;
    }
    return cuda_launch(
        be, &cuda_qkv, 0,
        (struct cuda_grid){.x = (unsigned)((heads + WARPS - 1) / WARPS),
                           .threads = QKV_THREADS,
                           .shared_bytes = WARPS * (u->hd + u->rope_dims) * sizeof(float)},
        &args, err);
}

const struct cuda_family cuda_qkv = {
    .kernels = qkv_kernels, .n_kernels = 1, .check = qkv_check, .run = qkv_run};
