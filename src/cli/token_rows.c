/* token_rows.c - see token_rows.h. */
#include "cli/token_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/json.h"
#include "base/size.h"
#include "formats/safetensors.h"

enum { GOLDEN_BYTES_MAX = 64 << 20 };

/* Appends n_rows rows of `width` tokens each; the ids are still to be filled in. The rows point nowhere
 * until rows_point(), since the memory moves while it grows. */
static enum status rows_add(struct token_rows *r, size_t n_rows, size_t width, struct error *err)
{
    size_t n_ids, total_rows = r->n_rows + n_rows;
    struct token_row *rows;
    int32_t *ids;

    if (width < 2 || !size_mul(&n_ids, n_rows, width) || n_ids == 0 ||
        n_ids > TOKEN_ROWS_TOKENS_MAX - r->n_ids) {
        return error_set(err, ERR_LIMIT,
                         "%zu rows of %zu tokens: rows of at least two tokens are needed, and at "
                         "most %d tokens in all",
                         n_rows, width, TOKEN_ROWS_TOKENS_MAX);
    }
    ids = realloc(r->ids, (r->n_ids + n_ids) * sizeof *ids);
    r->ids = ids ? ids : r->ids;
    rows = realloc(r->rows, total_rows * sizeof *rows);
    r->rows = rows ? rows : r->rows;
    if (!ids || !rows) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu tokens", n_ids);
    }
    for (size_t i = r->n_rows; i < total_rows; i++) {
        rows[i] = (struct token_row){.n = width};
    }
    r->n_rows = total_rows;
    r->n_ids += n_ids;
    return OK;
}

static void rows_point(struct token_rows *r)
{
    const int32_t *at = r->ids;

    for (size_t i = 0; i < r->n_rows; i++) {
        r->rows[i].ids = at;
        at += r->rows[i].n;
    }
}

/* ---- safetensors ---- */

static enum status add_tensor(struct token_rows *r, const struct safetensors_entry *e,
                              struct error *err)
{
    const struct tensor *t = &e->tensor;
    size_t width = t->n_dims > 0 ? t->shape[t->n_dims - 1] : 0, n = tensor_count(t);
    size_t first = r->n_ids;
    enum status rc;

    if (t->dtype != DTYPE_I32 && t->dtype != DTYPE_I64) {
        return error_set(err, ERR_FORMAT, "token ids are int32 or int64, not %s",
                         dtype_name(t->dtype));
    }
    rc = rows_add(r, width > 0 ? n / width : 0, width, err);
    for (size_t i = 0; rc == OK && i < n; i++) {
        const uint8_t *data = t->data;
        int64_t wide = 0;

        if (t->dtype == DTYPE_I32) {
            memcpy(&r->ids[first + i], data + i * sizeof(int32_t), sizeof(int32_t));
            continue;
        }
        memcpy(&wide, data + i * sizeof wide, sizeof wide);
        if (wide < 0 || wide > INT32_MAX) {
            rc = error_set(err, ERR_FORMAT, "%lld is not a token id", (long long)wide);
        }
        r->ids[first + i] = (int32_t)wide;
    }
    return rc;
}

enum status token_rows_of_file(struct token_rows *out, const char *path, struct error *err)
{
    struct safetensors *file = NULL;
    enum status rc = safetensors_open(&file, path, err);

    *out = (struct token_rows){0};
    for (size_t i = 0; rc == OK && i < safetensors_count(file); i++) {
        const struct safetensors_entry *e = safetensors_at(file, i);

        rc = add_tensor(out, e, err);
        if (rc != OK) {
            error_prefix(err, "'%s', tensor '%s'", path, e->name);
        }
    }
    safetensors_close(file);
    if (rc == OK && out->n_rows == 0) {
        rc = error_set(err, ERR_FORMAT, "'%s' holds no rows", path);
    }
    rows_point(out);
    return rc;
}

/* ---- golden.json ---- */

static enum status read_golden(struct token_rows *out, double *recorded, struct json_object *o,
                               struct error *err)
{
    size_t n_rows = 0, width = 0, n = 0;
    struct json_object *list = json_get(o, "loss_text_tokens");
    enum status rc = json_get_size(&n_rows, o, "loss_rows", ERR_FORMAT, err);

    if (rc == OK) {
        rc = json_get_size(&width, o, "loss_row_tokens", ERR_FORMAT, err);
    }
    if (rc == OK && recorded) {
        rc = json_get_double(recorded, o, "mean_loss", ERR_FORMAT, err);
    }
    if (rc == OK && json_object_is_type(list, json_type_array)) {
        n = json_object_array_length(list);
    }
    if (rc == OK && (width == 0 || n_rows == 0 || n / width < n_rows)) {
        rc =
            error_set(err, ERR_FORMAT, "%zu loss tokens are not %zu rows of %zu", n, n_rows, width);
    }
    if (rc == OK) {
        rc = rows_add(out, n_rows, width, err);
    }
    for (size_t i = 0; rc == OK && i < out->n_ids; i++) {
        int64_t id = json_object_get_int64(json_object_array_get_idx(list, i));

        if (id < 0 || id > INT32_MAX) {
            rc = error_set(err, ERR_FORMAT, "loss token %zu is not a token id", i);
        }
        out->ids[i] = (int32_t)id;
    }
    return rc;
}

enum status token_rows_of_golden(struct token_rows *out, double *recorded, const char *path,
                                 struct error *err)
{
    struct json_object *o = NULL;
    enum status rc = json_parse_file(&o, path, GOLDEN_BYTES_MAX, err);

    *out = (struct token_rows){0};
    if (rc != OK) {
        return rc;
    }
    rc = read_golden(out, recorded, o, err);
    if (rc != OK) {
        error_prefix(err, "'%s'", path);
    }
    json_object_put(o);
    rows_point(out);
    return rc;
}

/* ---- text ---- */

static enum status rows_from_ids(struct token_rows *out, const struct token_ids *ids, size_t width,
                                 struct error *err)
{
    size_t whole = ids->n / width, rest = ids->n % width;
    enum status rc = OK;

    if (whole > 0) {
        rc = rows_add(out, whole, width, err);
    }
    if (rc == OK && (rest > 1 || whole == 0)) { /* a single token predicts nothing */
        rc = rows_add(out, 1, rest, err);
    }
    if (rc == OK) {
        memcpy(out->ids, ids->ids, out->n_ids * sizeof *out->ids);
    }
    return rc;
}

enum status token_rows_of_text(struct token_rows *out, const struct tokenizer *t, const char *path,
                               size_t row_tokens, struct error *err)
{
    struct token_ids ids = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    enum status rc = file_read(&text, &n_bytes, path, TOKEN_ROWS_TEXT_MAX, err);

    *out = (struct token_rows){0};
    if (rc == OK) {
        rc = tokenizer_encode_text(&ids, t, (struct str){text, n_bytes}, err);
        if (rc == OK) {
            rc = rows_from_ids(out, &ids, row_tokens, err);
        }
        if (rc != OK) {
            error_prefix(err, "'%s'", path);
        }
    }
    token_ids_release(&ids);
    free(text);
    rows_point(out);
    return rc;
}

/* ---- all ---- */

void token_rows_limit(struct token_rows *r, size_t n_predicted)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->n_rows; i++) {
        size_t left = n_predicted - kept;

        if (left == 0) {
            r->n_rows = i;
            return;
        }
        r->rows[i].n = size_min(r->rows[i].n, left + 1);
        kept += r->rows[i].n - 1;
    }
}

size_t token_rows_predicted(const struct token_rows *r)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_rows; i++) {
        n += r->rows[i].n - 1;
    }
    return n;
}

void token_rows_release(struct token_rows *r)
{
    free(r->ids);
    free(r->rows);
    *r = (struct token_rows){0};
}
