/* config_fields.c - range-checked members of a configuration object. See config_fields.h. */
#include "formats/config_fields.h"

#include <math.h>
#include <string.h>

enum status config_missing(const char *key, struct error *err)
{
    return error_set_param(err, ERR_FORMAT, key, "field '%s' is missing", key);
}

enum status config_size(size_t *out, struct json_object *o, const char *key, size_t min, size_t max,
                        enum config_need need, struct error *err)
{
    size_t v = 0;
    enum status rc;

    if (!json_get(o, key)) {
        return need == CONFIG_REQUIRED ? config_missing(key, err) : OK;
    }
    rc = json_get_size(&v, o, key, ERR_FORMAT, err);
    if (rc != OK) {
        return rc;
    }
    if (v < min || v > max) {
        return error_set_param(err, ERR_FORMAT, key, "field '%s' is %zu, not in %zu..%zu", key, v,
                               min, max);
    }
    *out = v;
    return OK;
}

enum status config_double(double *out, struct json_object *o, const char *key, double min,
                          double max, enum config_need need, struct error *err)
{
    double v = 0.0;
    enum status rc;

    if (!json_get(o, key)) {
        return need == CONFIG_REQUIRED ? config_missing(key, err) : OK;
    }
    rc = json_get_double(&v, o, key, ERR_FORMAT, err);
    if (rc != OK) {
        return rc;
    }
    if (!(v >= min && v <= max)) {
        return error_set_param(err, ERR_FORMAT, key, "field '%s' is %g, not in %g..%g", key, v, min,
                               max);
    }
    *out = v;
    return OK;
}

static enum status token_id(int32_t *out, struct json_object *v, const char *key, size_t limit,
                            struct error *err)
{
    int64_t id;

    if (!json_object_is_type(v, json_type_int)) {
        return error_set_param(err, ERR_FORMAT, key,
                               "field '%s' is neither a token id nor a list of them", key);
    }
    id = json_object_get_int64(v);
    if (id < 0 || (uint64_t)id >= limit || id > INT32_MAX) {
        return error_set_param(err, ERR_FORMAT, key, "field '%s': token id %lld is not below %zu",
                               key, (long long)id, limit);
    }
    *out = (int32_t)id;
    return OK;
}

enum status config_token_ids(int32_t *ids, size_t *n, size_t max, struct json_object *o,
                             const char *key, size_t limit, struct error *err)
{
    struct json_object *v = json_get(o, key);
    size_t count;

    if (!v) {
        return OK;
    }
    if (!json_object_is_type(v, json_type_array)) {
        enum status rc = token_id(&ids[0], v, key, limit, err);

        if (rc == OK) {
            *n = 1;
        }
        return rc;
    }
    count = json_object_array_length(v);
    if (count > max) {
        return error_set_param(err, ERR_LIMIT, key, "field '%s' has %zu token ids, more than %zu",
                               key, count, max);
    }
    for (size_t i = 0; i < count; i++) {
        enum status rc = token_id(&ids[i], json_object_array_get_idx(v, i), key, limit, err);

        if (rc != OK) {
            return rc;
        }
    }
    *n = count;
    return OK;
}

enum status config_dtype(enum dtype *out, struct json_object *o, const char *key, struct error *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } known[] = {{"auto", DTYPE_NONE},   {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16},
                 {"float32", DTYPE_F32}, {"half", DTYPE_F16},      {"float", DTYPE_F32},
                 {"float64", DTYPE_F64}};
    const char *text = NULL;
    enum status rc = json_get_string(&text, o, key, ERR_FORMAT, err);

    if (rc != OK || !text) {
        return rc;
    }
    if (strncmp(text, "torch.", 6) == 0) {
        text += 6;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, text) == 0) {
            *out = known[i].dtype;
            return OK;
        }
    }
    return error_set_param(err, ERR_UNSUPPORTED, key, "field '%s': type '%s' is not supported", key,
                           text);
}
