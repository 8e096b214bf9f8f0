/* inspect_json.c - the report of `spillway inspect` as one JSON object. See inspect_report.h. */
#include <stdio.h>
#include <string.h>

#include "cli/inspect_report.h"

/* A tree under construction: json-c returns NULL when memory ends, and adding NULL would read as
 * JSON null, so each step looks and remembers. */
struct tree {
    bool failed;
};

static struct json_object *checked(struct tree *t, struct json_object *o)
{
    t->failed = t->failed || !o;
    return o;
}

static void add(struct tree *t, struct json_object *o, const char *key, struct json_object *v)
{
    if (!o || !checked(t, v) || json_object_object_add(o, key, v) != 0) {
        json_object_put(v);
        t->failed = true;
    }
}

static void add_text(struct tree *t, struct json_object *o, const char *key, const char *v)
{
    if (v) {
        add(t, o, key, json_object_new_string(v));
    } else if (!o || json_object_object_add(o, key, NULL) != 0) {
        t->failed = true;
    }
}

static void add_size(struct tree *t, struct json_object *o, const char *key, size_t v)
{
    add(t, o, key, json_object_new_uint64(v));
}

static void add_bool(struct tree *t, struct json_object *o, const char *key, bool v)
{
    add(t, o, key, json_object_new_boolean(v));
}

static struct json_object *new_object(struct tree *t)
{
    return checked(t, json_object_new_object());
}

static struct json_object *new_list(struct tree *t)
{
    return checked(t, json_object_new_array());
}

static void push(struct tree *t, struct json_object *list, struct json_object *v)
{
    if (!list || !v || json_object_array_add(list, v) != 0) {
        json_object_put(v);
        t->failed = true;
    }
}

static struct json_object *config_json(struct tree *t, const struct model_config *c)
{
    struct json_object *o = new_object(t), *kinds = new_list(t);
    const struct {
        const char *key;
        size_t value;
    } sizes[] = {
        {"hidden_size", c->hidden_size},
        {"num_hidden_layers", c->n_layers},
        {"vocab_size", c->vocab_size},
        {"max_positions", c->max_positions},
        {"num_attention_heads", c->n_heads},
        {"num_key_value_heads", c->n_kv_heads},
        {"head_dim", c->head_dim},
        {"rotary_dims", c->rope.n_dims},
        {"linear_num_key_heads", c->linear_n_key_heads},
        {"linear_num_value_heads", c->linear_n_value_heads},
        {"linear_key_head_dim", c->linear_key_dim},
        {"linear_value_head_dim", c->linear_value_dim},
        {"linear_conv_kernel_dim", c->linear_conv_taps},
        {"num_experts", c->n_experts},
        {"num_experts_per_tok", c->n_experts_per_token},
        {"moe_intermediate_size", c->expert_intermediate_size},
        {"shared_expert_intermediate_size", c->shared_intermediate_size},
        {"intermediate_size", c->intermediate_size},
    };

    add_text(t, o, "family", model_family_name(c->family));
    add_text(t, o, "model_type", c->model_type);
    add_text(t, o, "architecture", c->architecture[0] ? c->architecture : NULL);
    add_bool(t, o, "has_vision", c->has_vision);
    add_text(t, o, "dtype", c->dtype == DTYPE_NONE ? NULL : dtype_name(c->dtype));
    add_bool(t, o, "tie_word_embeddings", c->tie_embeddings);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        add_size(t, o, sizes[i].key, sizes[i].value);
    }
    add(t, o, "rope_theta", json_object_new_double(c->rope.theta));
    add_bool(t, o, "yarn", c->rope.is_yarn);
    for (size_t i = 0; i < c->n_layers; i++) {
        push(t, kinds,
             json_object_new_string(c->layer_is_full[i] ? "full_attention" : "linear_attention"));
    }
    add(t, o, "layer_types", kinds);
    return o;
}

static struct json_object *quantisation_json(struct tree *t, const struct inspect_report *r)
{
    const struct gptq_settings *s = gptq_config_default(r->gptq);
    struct json_object *o = new_object(t), *notes = new_object(t);

    add_text(t, o, "method", "gptq");
    add_size(t, o, "bits", s->bits);
    add(t, o, "group_size", json_object_new_int64(s->group_size));
    add_bool(t, o, "symmetric", s->is_symmetric);
    add_bool(t, o, "desc_act", s->has_desc_act);
    add_text(t, o, "checkpoint_format", s->is_v2 ? "gptq_v2" : "gptq");
    add_size(t, o, "matrices", r->n_quantised);
    add_bool(t, o, "checked", r->is_checked);
    for (unsigned i = 0; i < GPTQ_NOTE_COUNT; i++) {
        if (r->notes[i] > 0) {
            add_size(t, notes, gptq_note_text(1u << i), r->notes[i]);
        }
    }
    add(t, o, "notes", notes);
    return o;
}

static struct json_object *classes_json(struct tree *t, const struct inspect_report *r)
{
    struct json_object *list = new_list(t);

    for (size_t i = 0; i < r->n_rows; i++) {
        struct json_object *o = new_object(t);

        add_text(t, o, "class", tensor_class_name(r->rows[i].class));
        add_text(t, o, "stored_as", r->rows[i].form);
        add_size(t, o, "tensors", r->rows[i].n_tensors);
        add_size(t, o, "bytes", r->rows[i].n_bytes);
        add_bool(t, o, "skipped", tensor_class_is_skipped(r->rows[i].class));
        push(t, list, o);
    }
    return list;
}

static struct json_object *memory_json(struct tree *t, const struct inspect_report *r)
{
    struct json_object *o = new_object(t);

    add_size(t, o, "weight_bytes", r->bytes_used);
    add_size(t, o, "skipped_bytes", r->bytes_skipped);
    add_size(t, o, "state_bytes_per_sequence", inspect_state_bytes(&r->config));
    add_size(t, o, "kv_bytes_per_token_16_bit", 2 * inspect_kv_values(&r->config));
    return o;
}

static struct json_object *tensors_json(struct tree *t, const struct checkpoint *c)
{
    struct json_object *list = new_list(t);

    for (size_t i = 0; i < checkpoint_count(c) && !t->failed; i++) {
        const struct checkpoint_tensor *e = checkpoint_at(c, i);
        struct json_object *o = new_object(t), *shape = new_list(t);

        for (size_t d = 0; d < e->tensor.n_dims; d++) {
            push(t, shape, json_object_new_uint64(e->tensor.shape[d]));
        }
        add_text(t, o, "name", e->name);
        add_text(t, o, "dtype", dtype_name(e->tensor.dtype));
        add(t, o, "shape", shape);
        add_size(t, o, "bytes", e->n_bytes);
        add_text(t, o, "file", e->file);
        push(t, list, o);
    }
    return list;
}

static struct json_object *report_json(struct tree *t, const struct inspect_report *r,
                                       bool with_tensors)
{
    struct json_object *o = new_object(t);
    bool is_readable = r->config_error.code == OK;

    add_text(t, o, "path", checkpoint_dir(r->checkpoint));
    add_size(t, o, "tensor_count", checkpoint_count(r->checkpoint));
    add_size(t, o, "tensor_bytes", checkpoint_bytes(r->checkpoint));
    add_size(t, o, "files", checkpoint_n_files(r->checkpoint));
    if (is_readable) {
        add(t, o, "config", config_json(t, &r->config));
        add(t, o, "memory", memory_json(t, r));
    } else {
        add_text(t, o, "config_error", r->config_error.text);
    }
    if (r->gptq) {
        add(t, o, "quantization", quantisation_json(t, r));
    } else {
        add_text(t, o, "quantization", NULL);
    }
    if (r->quant_error.code != OK) {
        add_text(t, o, "quantization_error", r->quant_error.text);
    }
    add_text(t, o, "tokenizer", r->tokenizer);
    add_text(t, o, "chat_template", r->chat_template);
    add(t, o, "classes", classes_json(t, r));
    if (with_tensors) {
        add(t, o, "tensors", tensors_json(t, r->checkpoint));
    }
    return o;
}

enum status inspect_print_json(struct buf *out, const struct inspect_report *r, bool with_tensors,
                               struct error *err)
{
    static const struct json_python_style style = {.indent = 2};
    struct tree t = {false};
    struct json_object *o = report_json(&t, r, with_tensors);

    if (!t.failed) {
        json_write_python(out, o, &style);
        buf_append_char(out, '\n');
    }
    json_object_put(o);
    return t.failed ? error_set(err, ERR_NO_MEMORY, "cannot allocate the report") : OK;
}
