/* model_resolve.c - see model_resolve.h. */
#include "cli/model_resolve.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

/* ---- dtypes --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum dtype dtype;
} dtype_names[] = {
    {"auto", DTYPE_NONE},     {"float", DTYPE_F32},        {"float32", DTYPE_F32},
    {"half", DTYPE_F16},      {"float16", DTYPE_F16},      {"bf16", DTYPE_BF16},
    {"bfloat16", DTYPE_BF16}, {"fp8_e4m3", DTYPE_F8_E4M3}, {"fp8_e5m2", DTYPE_F8_E5M2},
};

/* The flag tables let only known names through; a caller that fills the struct itself gets auto. */
static enum dtype dtype_named(const char *name)
{
    for (size_t i = 0; name && i < sizeof dtype_names / sizeof dtype_names[0]; i++) {
        if (strcmp(dtype_names[i].name, name) == 0) {
            return dtype_names[i].dtype;
        }
    }
    return DTYPE_NONE;
}

const char *cpu_activations_name(enum cpu_activations a)
{
    return a == CPU_ACTIVATIONS_INT8 ? "int8" : a == CPU_ACTIVATIONS_BF16 ? "bf16" : "f32";
}

/* auto follows --dtype: who names a type wants its accuracy. Beside a card only float32 asks for more than
 * int8: there a half type is what auto gives. */
static void resolve_activations(struct model_resolved *out, const struct model_flags *f,
                                const struct resolve_place *place, struct settings *s)
{
    const char *asked = f->cpu_activations ? f->cpu_activations : "auto";
    const char *why = NULL;

    if (strcmp(asked, "int8") == 0) {
        out->activations = CPU_ACTIVATIONS_INT8;
    } else if (strcmp(asked, "bf16") == 0) {
        out->activations = CPU_ACTIVATIONS_BF16;
    } else if (strcmp(asked, "f32") == 0) {
        out->activations = CPU_ACTIVATIONS_F32;
    } else {
        bool is_free =
            place->overflows ? out->compute != DTYPE_F32 : dtype_named(f->dtype) == DTYPE_NONE;
        out->activations = is_free ? CPU_ACTIVATIONS_INT8 : CPU_ACTIVATIONS_F32;
        why = place->overflows ? "for experts that the CPU computes"
              : is_free        ? "--dtype is auto"
                               : "--dtype was given";
    }
    settings_add(s, "cpu-activations", f->cpu_activations, why, "%s",
                 cpu_activations_name(out->activations));
}

static void resolve_dtypes(struct model_resolved *out, const struct model_flags *f,
                           const struct model_config *c, const struct resolve_place *place,
                           struct settings *s)
{
    bool on_card = place->card_bytes > 0;

    out->compute = dtype_named(f->dtype);
    const char *why = NULL;
    if (out->compute == DTYPE_NONE && on_card) {
        bool from_config = c->dtype == DTYPE_F16 || c->dtype == DTYPE_BF16;
        out->compute = from_config ? c->dtype : DTYPE_BF16;
        why = from_config ? "config.json" : "default on a card";
    } else if (out->compute == DTYPE_NONE) {
        out->compute = DTYPE_F32;
        why = "CPU: float32 over weights as stored";
    }
    settings_add(s, "dtype", f->dtype, why, "%s", dtype_name(out->compute));

    out->kv = dtype_named(f->kv_cache_dtype);
    why = NULL;
    if (out->kv == DTYPE_NONE) {
        out->kv = out->compute;
        why = "as the activations";
    }
    settings_add(s, "kv-cache-dtype", f->kv_cache_dtype, why, "%s", dtype_name(out->kv));

    out->recurrent = dtype_named(f->mamba_ssm_dtype);
    why = NULL;
    if (out->recurrent == DTYPE_NONE) {
        bool from_config = c->ssm_dtype != DTYPE_NONE;
        out->recurrent = from_config ? c->ssm_dtype : DTYPE_F32;
        why = from_config ? "config.json" : "default";
    }
    settings_add(s, "mamba-ssm-dtype", f->mamba_ssm_dtype, why, "%s", dtype_name(out->recurrent));
    settings_add(s, "conv-state-dtype", "", "follows dtype, always", "%s",
                 dtype_name(out->compute));

    if (on_card && !place->overflows) {
        settings_add(s, "cpu-activations", f->cpu_activations, "the card computes", "none");
    } else {
        resolve_activations(out, f, place, s);
    }
    out->dense_quant =
        f->dense_quant && strcmp(f->dense_quant, "int8") == 0 ? DENSE_QUANT_INT8 : DENSE_QUANT_NONE;
    settings_add(s, "dense-quant", f->dense_quant, NULL, "%s", dense_quant_name(out->dense_quant));
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static enum status resolve_context(struct model_resolved *out, const struct model_flags *f,
                                   const struct model_config *c, struct settings *s,
                                   struct error *err)
{
    size_t asked = f->context_length;
    if (asked > c->max_positions) {
        return error_set_param(err, ERR_USAGE, "context-length",
                               "--context-length %zu is longer than the model's %zu positions",
                               asked, c->max_positions);
    }
    if (asked && f->max_total_tokens && asked > f->max_total_tokens) {
        return error_set_param(err, ERR_USAGE, "context-length",
                               "--context-length %zu does not fit the KV pool of "
                               "--max-total-tokens %zu",
                               asked, f->max_total_tokens);
    }
    size_t usual = out->is_large_card ? MAX_TOTAL_TOKENS_LARGE : MAX_TOTAL_TOKENS_DEFAULT;
    size_t pool = f->max_total_tokens ? f->max_total_tokens : usual;
    /* An explicit context alone makes the default pool as large as it must be. */
    out->context_length = asked ? asked : size_min(c->max_positions, pool);
    settings_add_size(s, "context-length", asked,
                      asked                                    ? NULL
                      : out->context_length < c->max_positions ? "the KV pool"
                                                               : "the model's",
                      out->context_length);

    size_t usable = out->max_running * out->context_length; /* <= 2^10 * 2^28 */
    if (f->max_total_tokens) {
        out->max_total_tokens = f->max_total_tokens;
    } else {
        out->max_total_tokens = size_min(size_max(usual, out->context_length), usable);
    }
    settings_add_size(s, "max-total-tokens", f->max_total_tokens,
                      f->max_total_tokens               ? NULL
                      : out->max_total_tokens == usable ? "running requests x context"
                                                        : "default",
                      out->max_total_tokens);
    return OK;
}

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static enum status resolve_chunk(struct model_resolved *out, const struct model_flags *f,
                                 const struct resolve_place *place, struct settings *s,
                                 struct error *err)
{
    size_t whole = round_up(out->context_length, CHUNK_TOKENS_UNIT);
    const char *why =
        place->chunk_tokens ? "so that steps leave the card's memory to experts" : NULL;
    size_t chunk = place->chunk_tokens  ? place->chunk_tokens
                   : out->is_large_card ? CHUNK_TOKENS_LARGE
                                        : CHUNK_TOKENS_DEFAULT;
    char asked[32] = "";

    if (f->chunked_prefill_size < 0) {
        out->chunk_tokens = 0;
        out->max_prefill_tokens = whole;
        settings_add(s, "chunked-prefill-size", "-1", "prompts are never cut", "off");
    } else {
        if (f->chunked_prefill_size > 0) {
            chunk = (size_t)f->chunked_prefill_size;
            why = NULL;
            snprintf(asked, sizeof asked, "%zu", chunk);
        }
        if (chunk % CHUNK_TOKENS_UNIT != 0) {
            return error_set_param(err, ERR_USAGE, "chunked-prefill-size",
                                   "--chunked-prefill-size %zu is not a multiple of %d; %zu is",
                                   chunk, CHUNK_TOKENS_UNIT, round_up(chunk, CHUNK_TOKENS_UNIT));
        }
        if (chunk > whole) {
            chunk = whole;
            why = "no prompt is longer";
        }
        out->chunk_tokens = out->max_prefill_tokens = chunk;
        settings_add(s, "chunked-prefill-size", asked, why, "%zu", chunk);
    }
    why = "one chunk";
    if (f->max_prefill_tokens) {
        out->max_prefill_tokens = size_max(out->max_prefill_tokens, f->max_prefill_tokens);
        why = out->max_prefill_tokens > f->max_prefill_tokens ? "at least one chunk" : NULL;
    }
    settings_add_size(s, "max-prefill-tokens", f->max_prefill_tokens, why, out->max_prefill_tokens);
    return OK;
}

enum status model_resolve(struct model_resolved *out, const struct model_flags *f,
                          const struct model_config *c, const struct resolve_place *place,
                          struct settings *s, struct error *err)
{
    *out = (struct model_resolved){0};
    out->is_large_card = place->card_bytes >= (size_t)LARGE_CARD_GIB << 30;
    resolve_dtypes(out, f, c, place, s);
    out->max_running = f->max_running_requests ? f->max_running_requests : place->max_running;
    settings_add_size(s, "max-running-requests", f->max_running_requests,
                      f->max_running_requests ? NULL
                      : place->overflows      ? "experts overflow"
                                              : "default",
                      out->max_running);
    enum status rc = resolve_context(out, f, c, s, err);
    if (rc == OK) {
        rc = resolve_chunk(out, f, place, s, err);
    }
    out->rows_max = out->max_prefill_tokens + out->max_running;
    return rc;
}

/* ---- quantisation --------------------------------------------------------------------------- */

/* Names under which other servers know the kernels for one kind of file. */
static bool is_gptq_name(const char *name)
{
    static const char *const names[] = {"gptq", "gptq_marlin", "gptq-int4", "marlin", "moe_wna16"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

enum status quantization_check(const char *asked, const char *stored, struct settings *s,
                               struct error *err)
{
    bool agrees = !asked || strcmp(asked, "auto") == 0 || (stored && strcmp(asked, stored) == 0) ||
                  (stored && is_gptq_name(asked) && is_gptq_name(stored)) ||
                  (!stored && (strcmp(asked, "unquant") == 0 || strcmp(asked, "none") == 0));
    if (!agrees) {
        return error_set_param(err, ERR_USAGE, "quantization",
                               "--quantization %s disagrees with the checkpoint, which is %s",
                               asked, stored ? stored : "not quantised");
    }
    bool renamed = asked && stored && strcmp(asked, stored) != 0;
    settings_add(s, "quantization", asked, renamed ? "another name for the same files" : NULL, "%s",
                 stored ? stored : "none");
    return OK;
}
