/* generation_config.c - generation_config.json as checked defaults for sampling.
 *
 * Place: formats; see model_config.h. Only what a sampler uses is read; the ranges are those that a
 *        request may use too. */
#include <string.h>

#include "formats/config_fields.h"
#include "formats/model_config.h"

static enum status read_number(double *out, bool *has, struct json_object *o, const char *key,
                               double min, double max, struct error *err)
{
    *has = json_get(o, key) != NULL;
    return config_double(out, o, key, min, max, CONFIG_OPTIONAL, err);
}

static enum status read_all(struct generation_config *c, struct json_object *o, struct error *err)
{
    enum status rc;

    if (o && !json_object_is_type(o, json_type_object)) {
        return error_set(err, ERR_FORMAT, "it is not a JSON object");
    }
    rc = read_number(&c->temperature, &c->has_temperature, o, "temperature", 0.0, 100.0, err);
    if (rc == OK) {
        rc = read_number(&c->top_p, &c->has_top_p, o, "top_p", 0.0, 1.0, err);
    }
    if (rc == OK) {
        rc = read_number(&c->min_p, &c->has_min_p, o, "min_p", 0.0, 1.0, err);
    }
    if (rc == OK) {
        rc = read_number(&c->repetition_penalty, &c->has_repetition_penalty, o,
                         "repetition_penalty", 1e-3, 1e3, err);
    }
    if (rc == OK) {
        c->has_top_k = json_get(o, "top_k") != NULL;
        rc = json_get_int(&c->top_k, o, "top_k", ERR_FORMAT, err);
    }
    if (rc == OK && (c->top_k < -1 || c->top_k > CONFIG_VOCAB_MAX)) {
        rc = error_set_param(err, ERR_FORMAT, "top_k", "field 'top_k' is %lld, not in -1..%d",
                             (long long)c->top_k, CONFIG_VOCAB_MAX);
    }
    if (rc == OK) {
        rc = config_token_ids(c->eos_ids, &c->n_eos_ids, CONFIG_EOS_MAX, o, "eos_token_id",
                              CONFIG_VOCAB_MAX, err);
    }
    return rc;
}

enum status generation_config_read(struct generation_config *out, struct json_object *o,
                                   struct error *err)
{
    enum status rc;

    memset(out, 0, sizeof *out);
    out->temperature = 1.0;
    out->top_p = 1.0;
    out->repetition_penalty = 1.0;
    rc = read_all(out, o, err);
    if (rc != OK) {
        error_prefix(err, "generation_config.json");
    }
    return rc;
}
