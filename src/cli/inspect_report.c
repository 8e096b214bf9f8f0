/* inspect_report.c - gathering the facts about a checkpoint. See inspect_report.h. */
#include "cli/inspect_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "formats/safetensors.h"

enum { MODULE_BYTES = SAFETENSORS_NAME_BYTES_MAX + 1, CONFIG_JSON_BYTES_MAX = 16 << 20 };

/* ---- tensors ---- */

/* The parts of a quantised matrix by the suffix of their name. */
static const char *const gptq_parts[] = {".qweight", ".qzeros", ".scales", ".g_idx"};
enum { PART_QWEIGHT, PART_QZEROS, PART_SCALES, PART_G_IDX, PART_NONE };

/* Which part, and the module's name without the suffix. */
static unsigned gptq_part_of(struct str *module, const char *name)
{
    struct str s = str_of(name);

    for (unsigned i = 0; i < PART_NONE; i++) {
        if (str_ends(s, str_of(gptq_parts[i]))) {
            *module = (struct str){s.ptr, s.len - strlen(gptq_parts[i])};
            return i;
        }
    }
    return PART_NONE;
}

static void settings_of(struct gptq_settings *s, const struct gptq_config *c, struct str module)
{
    char name[MODULE_BYTES];

    *s = *gptq_config_default(c);
    snprintf(name, sizeof name, "%.*s", (int)module.len, module.ptr);
    (void)gptq_config_for(s, c, name, NULL); /* a rule that gives up: the defaults */
}

static void name_form(char out[INSPECT_LABEL_BYTES], const struct inspect_report *r,
                      const struct checkpoint_tensor *t)
{
    const char *type = dtype_name(t->tensor.dtype);
    struct str module;
    unsigned part = r->gptq ? gptq_part_of(&module, t->name) : (unsigned)PART_NONE;
    struct gptq_settings s;

    switch (part) {
    case PART_QWEIGHT:
        settings_of(&s, r->gptq, module);
        snprintf(out, INSPECT_LABEL_BYTES, "gptq int%u", s.bits);
        break;
    case PART_QZEROS:
        snprintf(out, INSPECT_LABEL_BYTES, "gptq zero points");
        break;
    case PART_SCALES:
        snprintf(out, INSPECT_LABEL_BYTES, "gptq scales %s", type);
        break;
    case PART_G_IDX:
        snprintf(out, INSPECT_LABEL_BYTES, "gptq order");
        break;
    default:
        snprintf(out, INSPECT_LABEL_BYTES, "%s", type);
    }
}

static void count_tensor(struct inspect_report *r, const struct checkpoint_tensor *t)
{
    enum tensor_class class = tensor_class_of(t->name);
    char form[INSPECT_LABEL_BYTES];
    struct str module;
    size_t i = 0;

    name_form(form, r, t);
    while (i < r->n_rows && (r->rows[i].class != class || strcmp(r->rows[i].form, form) != 0)) {
        i++;
    }
    if (i == INSPECT_ROWS_MAX) {
        r->n_dropped++;
    } else {
        if (i == r->n_rows) {
            r->rows[i].class = class;
            memcpy(r->rows[i].form, form, sizeof form);
            r->n_rows++;
        }
        r->rows[i].n_tensors++;
        r->rows[i].n_bytes += t->n_bytes;
    }
    *(tensor_class_is_skipped(class) ? &r->bytes_skipped : &r->bytes_used) += t->n_bytes;
    r->n_quantised += gptq_part_of(&module, t->name) == PART_QWEIGHT;
}

static int compare_rows(const void *a, const void *b)
{
    const struct inspect_row *x = a, *y = b;

    if (x->class != y->class) {
        return x->class < y->class ? -1 : 1;
    }
    return strcmp(x->form, y->form);
}

/* ---- the check of all quantised matrices ---- */

static struct tensor part_tensor(const struct checkpoint *c, struct str module, unsigned part)
{
    char name[MODULE_BYTES];
    const struct checkpoint_tensor *t;

    snprintf(name, sizeof name, "%.*s%s", (int)module.len, module.ptr, gptq_parts[part]);
    t = checkpoint_find(c, name);
    return t ? t->tensor : (struct tensor){0};
}

static enum status check_matrix(struct inspect_report *r, struct str module, struct error *err)
{
    const struct checkpoint *c = r->checkpoint;
    struct gptq_tensors t = {
        part_tensor(c, module, PART_QWEIGHT), part_tensor(c, module, PART_QZEROS),
        part_tensor(c, module, PART_SCALES), part_tensor(c, module, PART_G_IDX)};
    char name[MODULE_BYTES];
    struct gptq_settings s;
    struct gptq_matrix m;
    enum status rc;

    snprintf(name, sizeof name, "%.*s", (int)module.len, module.ptr);
    rc = gptq_config_for(&s, r->gptq, name, err);
    if (rc == OK) {
        rc = gptq_matrix_init(&m, name, &s, &t, NULL, err);
    }
    if (rc != OK) {
        return rc;
    }
    for (unsigned i = 0; i < GPTQ_NOTE_COUNT; i++) {
        r->notes[i] += m.notes >> i & 1;
    }
    gptq_matrix_release(&m);
    return OK;
}

static enum status check_matrices(struct inspect_report *r, struct error *err)
{
    for (size_t i = 0; r->gptq && i < checkpoint_count(r->checkpoint); i++) {
        struct str module;
        enum status rc = OK;

        if (gptq_part_of(&module, checkpoint_at(r->checkpoint, i)->name) == PART_QWEIGHT) {
            rc = check_matrix(r, module, err);
        }
        if (rc != OK) {
            return rc;
        }
    }
    r->is_checked = true;
    return OK;
}

/* ---- files beside the weights ---- */

static bool has_file(const struct checkpoint *c, const char *name)
{
    char path[CHECKPOINT_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", checkpoint_dir(c), name);

    return n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0;
}

static bool template_in_tokenizer_config(const struct checkpoint *c)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct json_object *o = NULL;
    int n = snprintf(path, sizeof path, "%s/tokenizer_config.json", checkpoint_dir(c));
    bool found;

    if (n < 0 || (size_t)n >= sizeof path ||
        json_parse_file(&o, path, CONFIG_JSON_BYTES_MAX, NULL) != OK) {
        return false;
    }
    found = json_get(o, "chat_template") != NULL;
    json_object_put(o);
    return found;
}

static void look_for_text_files(struct inspect_report *r)
{
    r->tokenizer = has_file(r->checkpoint, "tokenizer.json") ? "tokenizer.json" : NULL;
    if (has_file(r->checkpoint, "chat_template.jinja")) {
        r->chat_template = "chat_template.jinja";
    } else if (template_in_tokenizer_config(r->checkpoint)) {
        r->chat_template = "tokenizer_config.json";
    }
}

/* ---- entry points ---- */

enum status inspect_gather(struct inspect_report *out, const struct checkpoint *c,
                           struct json_object *override, bool check, struct error *err)
{
    memset(out, 0, sizeof *out);
    out->checkpoint = c;
    (void)model_config_read(&out->config, checkpoint_config(c), override, &out->config_error);
    (void)gptq_config_new(&out->gptq, checkpoint_quantization(c), &out->quant_error);
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        count_tensor(out, checkpoint_at(c, i));
    }
    qsort(out->rows, out->n_rows, sizeof out->rows[0], compare_rows);
    look_for_text_files(out);
    return check ? check_matrices(out, err) : OK;
}

void inspect_report_release(struct inspect_report *r)
{
    gptq_config_free(r->gptq);
    model_config_release(&r->config);
    memset(r, 0, sizeof *r);
}

static size_t n_full_layers(const struct model_config *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_layers; i++) {
        n += c->layer_is_full[i];
    }
    return n;
}

size_t inspect_kv_values(const struct model_config *c)
{
    return n_full_layers(c) * 2 * c->n_kv_heads * c->head_dim;
}

size_t inspect_state_bytes(const struct model_config *c)
{
    size_t keys = c->linear_n_key_heads * c->linear_key_dim;
    size_t values = c->linear_n_value_heads * c->linear_value_dim;
    size_t conv = (2 * keys + values) * (c->linear_conv_taps - 1);

    return (c->n_layers - n_full_layers(c)) * (conv + values * c->linear_key_dim) * sizeof(float);
}
