/* dtype_table.c - see dtype_table.h. */
#include "model/dtype_table.h"

static enum status refuse(struct error *err, const char *flag, enum dtype t, const char *choices)
{
    return error_set_param(err, ERR_UNSUPPORTED, flag, "%s %s is not possible: one of %s", flag,
                           dtype_name(t), choices);
}

enum status dtype_table_decide(struct dtype_table *out, const struct model_options *o,
                               const struct model_config *c, struct error *err)
{
    /* auto: float32 activations over weights as stored (on a CPU half precision saves nothing) */
    out->compute = o->compute_dtype == DTYPE_NONE ? DTYPE_F32 : o->compute_dtype;
    if (out->compute != DTYPE_F32 && out->compute != DTYPE_F16 && out->compute != DTYPE_BF16) {
        return refuse(err, "--dtype", out->compute, "auto, float32, float16, bfloat16");
    }
    out->conv = out->compute;

    out->kv = o->kv_dtype == DTYPE_NONE ? out->compute : o->kv_dtype;
    switch (out->kv) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        break;
    default:
        return refuse(err, "--kv-cache-dtype", out->kv,
                      "auto, float32, float16, bfloat16, fp8_e4m3, fp8_e5m2");
    }

    out->recurrent = o->recurrent_dtype;
    if (out->recurrent == DTYPE_NONE) {
        out->recurrent = c->ssm_dtype == DTYPE_NONE ? DTYPE_F32 : c->ssm_dtype;
    }
    if (out->recurrent != DTYPE_F32 && out->recurrent != DTYPE_BF16) {
        return refuse(err, "--mamba-ssm-dtype", out->recurrent, "auto, float32, bfloat16");
    }
    return OK;
}

static void row(struct buf *out, const char *what, enum dtype storage, enum dtype compute,
                const char *remark)
{
    buf_appendf(out, "  %-20s stored %-9s computed %-9s %s\n", what, dtype_name(storage),
                dtype_name(compute), remark);
}

void dtype_table_print(const struct dtype_table *t, struct buf *out)
{
    bool is_fp8 = t->kv == DTYPE_F8_E4M3 || t->kv == DTYPE_F8_E5M2;

    row(out, "activations", DTYPE_F32, DTYPE_F32,
        t->compute == DTYPE_F32   ? ""
        : t->compute == DTYPE_F16 ? "rounded to float16 when written"
                                  : "rounded to bfloat16 when written");
    row(out, "residual, norms", DTYPE_F32, DTYPE_F32, "");
    row(out, "router", DTYPE_F32, DTYPE_F32, "softmax over all experts");
    row(out, "gates, decay, rope", DTYPE_F32, DTYPE_F32, "");
    row(out, "conv state", t->conv, DTYPE_F32, "type of the activations");
    row(out, "recurrent state", t->recurrent, DTYPE_F32, "");
    row(out, "KV cache", t->kv, DTYPE_F32, is_fp8 ? "float32 scale per head and token" : "");
    row(out, "logits", DTYPE_F32, DTYPE_F32, "");
}
