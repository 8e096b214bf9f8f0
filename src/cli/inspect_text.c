/* inspect_text.c - the report of `spillway inspect` as a page of text. See inspect_report.h. */
#include <stdio.h>
#include <string.h>

#include "cli/inspect_report.h"

enum { NAME_COLUMN = 15 };

static void label(struct buf *out, const char *name)
{
    buf_appendf(out, "%-*s ", NAME_COLUMN, name);
}

static void append_bytes(struct buf *out, size_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t u = 0;

    while (v >= 1024.0 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1024.0;
        u++;
    }
    buf_appendf(out, u ? "%.2f %s" : "%.0f %s", v, units[u]);
}

static void print_rope(struct buf *out, const struct rope_config *r)
{
    label(out, "rope");
    buf_appendf(out, "%zu dimensions, theta %g", r->n_dims, r->theta);
    if (r->mrope_section[0] + r->mrope_section[1] + r->mrope_section[2] > 0) {
        buf_appendf(out, ", sections %zu/%zu/%zu%s", r->mrope_section[0], r->mrope_section[1],
                    r->mrope_section[2], r->mrope_interleaved ? " interleaved" : "");
    }
    if (r->is_yarn) {
        buf_appendf(out, ", yarn x%g over %zu positions", r->factor, r->original_positions);
    }
    buf_append_char(out, '\n');
}

static void print_config(struct buf *out, const struct model_config *c)
{
    size_t n_full = 0;

    for (size_t i = 0; i < c->n_layers; i++) {
        n_full += c->layer_is_full[i];
    }
    label(out, "architecture");
    buf_appendf(out, "%s (%s%s%s)\n", c->architecture[0] ? c->architecture : "not named",
                c->model_type, c->is_nested ? ", nested config" : "",
                c->has_vision ? ", with vision" : "");
    label(out, "layers");
    buf_appendf(out, "%zu: %zu linear attention, %zu full attention\n", c->n_layers,
                c->n_layers - n_full, n_full);
    label(out, "sizes");
    buf_appendf(out, "hidden %zu, vocabulary %zu%s, context %zu, type %s\n", c->hidden_size,
                c->vocab_size, c->tie_embeddings ? " (tied)" : "", c->max_positions,
                c->dtype == DTYPE_NONE ? "not named" : dtype_name(c->dtype));
    label(out, "attention");
    buf_appendf(out, "%zu heads, %zu key-value heads, %zu wide%s\n", c->n_heads, c->n_kv_heads,
                c->head_dim, c->attn_output_gate ? ", output gate" : "");
    print_rope(out, &c->rope);
    label(out, "linear attn");
    buf_appendf(out, "%zu key heads x %zu, %zu value heads x %zu, convolution of %zu taps\n",
                c->linear_n_key_heads, c->linear_key_dim, c->linear_n_value_heads,
                c->linear_value_dim, c->linear_conv_taps);
    label(out, "feed-forward");
    if (c->n_experts > 0) {
        buf_appendf(out, "%zu experts of width %zu, %zu per token, shared expert of width %zu\n",
                    c->n_experts, c->expert_intermediate_size, c->n_experts_per_token,
                    c->shared_intermediate_size);
    } else {
        buf_appendf(out, "dense, width %zu\n", c->intermediate_size);
    }
}

static void print_quantisation(struct buf *out, const struct inspect_report *r)
{
    const struct gptq_settings *s;

    label(out, "quantisation");
    if (r->quant_error.code != OK) {
        buf_appendf(out, "not readable here: %s\n", r->quant_error.text);
        return;
    }
    if (!r->gptq) {
        buf_append_str(out, "none\n");
        return;
    }
    s = gptq_config_default(r->gptq);
    buf_appendf(out, "gptq, %u bits, ", s->bits);
    if (s->group_size < 0) {
        buf_append_str(out, "one group per column");
    } else {
        buf_appendf(out, "groups of %lld", (long long)s->group_size);
    }
    buf_appendf(out, ", %s, %s zero points%s; %zu matrices\n",
                s->is_symmetric ? "symmetric" : "asymmetric", s->is_v2 ? "v2" : "v1",
                s->has_desc_act ? ", act-order" : "", r->n_quantised);
    for (unsigned i = 0; i < GPTQ_NOTE_COUNT; i++) {
        if (r->notes[i] > 0) {
            label(out, "");
            buf_appendf(out, "%zu matrices: %s\n", r->notes[i], gptq_note_text(1u << i));
        }
    }
    if (r->is_checked) {
        label(out, "");
        buf_append_str(out, "all matrices checked\n");
    }
}

static void print_rows(struct buf *out, const struct inspect_report *r)
{
    buf_appendf(out, "\n%-18s %-24s %8s %s\n", "tensors", "stored as", "count", "bytes");
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct inspect_row *row = &r->rows[i];
        bool same = i > 0 && r->rows[i - 1].class == row->class;

        buf_appendf(out, "%-18s %-24s %8zu ", same ? "" : tensor_class_name(row->class), row->form,
                    row->n_tensors);
        append_bytes(out, row->n_bytes);
        buf_append_str(out, tensor_class_is_skipped(row->class) ? "  (skipped)\n" : "\n");
    }
    if (r->n_dropped > 0) {
        buf_appendf(out, "%zu tensors of further forms\n", r->n_dropped);
    }
}

static void print_memory(struct buf *out, const struct inspect_report *r)
{
    const struct model_config *c = &r->config;
    size_t kv = inspect_kv_values(c), state = inspect_state_bytes(c);

    buf_append_str(out, "\nmemory\n");
    label(out, "  weights");
    append_bytes(out, r->bytes_used);
    if (r->bytes_skipped > 0) {
        buf_append_str(out, " (");
        append_bytes(out, r->bytes_skipped);
        buf_append_str(out, " of the files skipped)");
    }
    buf_append_char(out, '\n');
    label(out, "  per sequence");
    append_bytes(out, state);
    buf_append_str(out, " of float32 state\n");
    label(out, "  per token");
    append_bytes(out, kv * 4);
    buf_append_str(out, " of keys and values in float32, ");
    append_bytes(out, kv * 2);
    buf_append_str(out, " in 16 bits, ");
    append_bytes(out, kv);
    buf_append_str(out, " in 8 bits\n");
    label(out, "  one sequence");
    append_bytes(out, r->bytes_used + state + c->max_positions * kv * 2);
    buf_appendf(out, " with all %zu tokens in 16 bits, without scratch memory\n", c->max_positions);
}

static void print_tensors(struct buf *out, const struct checkpoint *c)
{
    buf_append_char(out, '\n');
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);

        buf_appendf(out, "%s  %s [", t->name, dtype_name(t->tensor.dtype));
        for (size_t d = 0; d < t->tensor.n_dims; d++) {
            buf_appendf(out, "%s%zu", d ? ", " : "", t->tensor.shape[d]);
        }
        buf_appendf(out, "]  %zu bytes  %s\n", t->n_bytes, t->file);
    }
}

void inspect_print_text(struct buf *out, const struct inspect_report *r, bool with_tensors)
{
    label(out, "model");
    buf_appendf(out, "%s\n", checkpoint_dir(r->checkpoint));
    if (r->config_error.code == OK) {
        print_config(out, &r->config);
    }
    print_quantisation(out, r);
    label(out, "tokenizer");
    buf_appendf(out, "%s\n", r->tokenizer ? r->tokenizer : "missing");
    label(out, "chat template");
    buf_appendf(out, "%s\n", r->chat_template ? r->chat_template : "none");
    label(out, "files");
    buf_appendf(out, "%zu tensors in %zu files, ", checkpoint_count(r->checkpoint),
                checkpoint_n_files(r->checkpoint));
    append_bytes(out, checkpoint_bytes(r->checkpoint));
    buf_append_char(out, '\n');
    print_rows(out, r);
    if (r->config_error.code == OK) {
        print_memory(out, r);
    }
    if (with_tensors) {
        print_tensors(out, r->checkpoint);
    }
}
