/* rope_config.c - rotary embedding fields from wherever a config.json keeps them.
 *
 * Place: formats; called by model_config.c.
 * Idea:  the fields moved over the years. Each is looked up in the same list of places, newest first:
 *          rope_parameters.X (or rope_parameters.full_attention.X), rope_scaling.X, then X itself,
 *        in the text model's object and then at the top of a nested file. All places that have a
 *        value must agree: a file that contradicts itself has no right answer, and a wrong angle
 *        gives fluent nonsense on long inputs. The base and the rotating share have no default. */
#include "formats/rope_config.h"

#include <math.h>
#include <string.h>

#include "formats/config_fields.h"

enum { PLACES_MAX = 6 };

#define ROPE_THETA_MAX  1e15
#define ROPE_FACTOR_MAX 4096.0

struct place {
    struct json_object *o;
    const char *path; /* put before the field's name in messages */
    bool is_bare;     /* the fields stand among all others */
};

struct places {
    struct place list[PLACES_MAX];
    size_t n;
};

static enum status add_place(struct places *p, struct json_object *o, const char *key,
                             const char *path, struct error *err)
{
    struct json_object *v = json_get(o, key);

    if (!v) {
        return OK;
    }
    if (!json_object_is_type(v, json_type_object)) {
        return error_set_param(err, ERR_FORMAT, key, "field '%s' is not an object", path);
    }
    if (json_get(v, "full_attention")) { /* one set of parameters for each kind of layer */
        v = json_get(v, "full_attention");
        if (!json_object_is_type(v, json_type_object)) {
            return error_set_param(err, ERR_FORMAT, key, "field '%s.full_attention' is no object",
                                   path);
        }
    }
    p->list[p->n++] = (struct place){v, path, false};
    return OK;
}

static enum status collect_places(struct places *p, struct json_object *text,
                                  struct json_object *outer, struct error *err)
{
    enum status rc;

    p->n = 0;
    rc = add_place(p, text, "rope_parameters", "rope_parameters", err);
    if (rc == OK) {
        rc = add_place(p, text, "rope_scaling", "rope_scaling", err);
    }
    if (rc == OK) {
        p->list[p->n++] = (struct place){text, "(text fields)", true};
    }
    if (rc == OK && outer) {
        rc = add_place(p, outer, "rope_parameters", "(top) rope_parameters", err);
    }
    if (rc == OK && outer) {
        rc = add_place(p, outer, "rope_scaling", "(top) rope_scaling", err);
    }
    if (rc == OK && outer) {
        p->list[p->n++] = (struct place){outer, "(top)", true};
    }
    return rc;
}

/* The place that holds the field, or NULL; ERR_FORMAT when two places hold different values. bare:
 * whether the field may stand among all others (a bare "factor" would mean something else). */
static enum status find_field(const struct place **out, const struct places *p, const char *key,
                              bool bare, struct error *err)
{
    *out = NULL;
    for (size_t i = 0; i < p->n; i++) {
        struct json_object *v = json_get(p->list[i].o, key), *first;

        if (!v || (p->list[i].is_bare && !bare)) {
            continue;
        }
        if (!*out) {
            *out = &p->list[i];
            continue;
        }
        first = json_get((*out)->o, key);
        /* 10000000 and 1e7 are the same number, so compare those as numbers. */
        if (!json_object_equal(first, v) &&
            !((json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double)) &&
              json_object_get_double(first) == json_object_get_double(v))) {
            return error_set_param(err, ERR_FORMAT, key,
                                   "field '%s' has two different values: %s in %s and %s in %s",
                                   key, json_object_to_json_string(first), (*out)->path,
                                   json_object_to_json_string(v), p->list[i].path);
        }
    }
    return OK;
}

static enum status find_double(double *out, const struct places *p, const char *key, bool bare,
                               double min, double max, enum config_need need, struct error *err)
{
    const struct place *at;
    enum status rc = find_field(&at, p, key, bare, err);

    if (rc != OK) {
        return rc;
    }
    return config_double(out, at ? at->o : NULL, key, min, max, need, err);
}

static enum status read_mrope(struct model_config *c, const struct places *p, struct error *err)
{
    static const size_t family_default[3] = {11, 11, 10};
    struct rope_config *r = &c->rope;
    size_t half = r->n_dims / 2, sum = 0;
    const struct place *at;
    struct json_object *v;
    enum status rc = find_field(&at, p, "mrope_section", false, err);

    if (rc != OK) {
        return rc;
    }
    r->mrope_interleaved = c->family != FAMILY_QWEN3_NEXT;
    if (!at) {
        /* Text positions are equal in all three sections, so leaving them out changes nothing for
         * text; the reference code's default counts only where it fits the head. */
        if (c->family != FAMILY_QWEN3_NEXT && half == 32) {
            memcpy(r->mrope_section, family_default, sizeof family_default);
        }
        return OK;
    }
    v = json_get(at->o, "mrope_section");
    if (!json_object_is_type(v, json_type_array) || json_object_array_length(v) != 3) {
        return error_set_param(err, ERR_FORMAT, "mrope_section",
                               "field 'mrope_section' is not a list of 3 numbers");
    }
    for (size_t i = 0; i < 3; i++) {
        struct json_object *e = json_object_array_get_idx(v, i);
        int64_t n = json_object_is_type(e, json_type_int) ? json_object_get_int64(e) : -1;

        if (n < 0 || n > CONFIG_HEAD_DIM_MAX) {
            return error_set_param(err, ERR_FORMAT, "mrope_section",
                                   "field 'mrope_section' holds something else than small numbers");
        }
        r->mrope_section[i] = (size_t)n;
        sum += (size_t)n;
    }
    if (sum != half) {
        return error_set_param(err, ERR_FORMAT, "mrope_section",
                               "field 'mrope_section' sums to %zu, but half of the %zu rotating "
                               "dimensions is %zu",
                               sum, 2 * half, half);
    }
    rc = find_field(&at, p, "mrope_interleaved", false, err);
    if (rc != OK) {
        return rc;
    }
    return json_get_bool(&r->mrope_interleaved, at ? at->o : NULL, "mrope_interleaved", ERR_FORMAT,
                         err);
}

/* Knobs of yarn that change the angles or the scale in ways the kernels do not know. */
static enum status refuse_yarn_extras(const struct places *p, struct error *err)
{
    static const char *const numbers[] = {"mscale", "mscale_all_dim"};
    bool truncate = true;
    const struct place *at;
    enum status rc;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double v = 0.0;

        rc = find_double(&v, p, numbers[i], false, -1e6, 1e6, CONFIG_OPTIONAL, err);
        if (rc != OK) {
            return rc;
        }
        if (v != 0.0) {
            return error_set_param(err, ERR_UNSUPPORTED, numbers[i],
                                   "yarn with field '%s' is not supported", numbers[i]);
        }
    }
    rc = find_field(&at, p, "truncate", false, err);
    if (rc == OK) {
        rc = json_get_bool(&truncate, at ? at->o : NULL, "truncate", ERR_FORMAT, err);
    }
    if (rc == OK && !truncate) {
        rc = error_set_param(err, ERR_UNSUPPORTED, "truncate",
                             "yarn with field 'truncate' false is not supported");
    }
    return rc;
}

static enum status read_yarn(struct model_config *c, const struct places *p, struct error *err)
{
    struct rope_config *r = &c->rope;
    const struct place *at;
    enum status rc;

    r->is_yarn = true;
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    rc = refuse_yarn_extras(p, err);
    if (rc == OK) {
        rc =
            find_double(&r->factor, p, "factor", false, 1.0, ROPE_FACTOR_MAX, CONFIG_REQUIRED, err);
    }
    if (rc == OK) {
        rc = find_double(&r->attention_factor, p, "attention_factor", false, 1e-6, 1e6,
                         CONFIG_OPTIONAL, err);
    }
    if (rc == OK) {
        rc = find_double(&r->beta_fast, p, "beta_fast", false, 1e-6, 1e6, CONFIG_OPTIONAL, err);
    }
    if (rc == OK) {
        rc = find_double(&r->beta_slow, p, "beta_slow", false, 1e-6, 1e6, CONFIG_OPTIONAL, err);
    }
    if (rc == OK && r->beta_fast <= r->beta_slow) {
        rc = error_set_param(err, ERR_FORMAT, "beta_fast",
                             "field 'beta_fast' (%g) is not above 'beta_slow' (%g)", r->beta_fast,
                             r->beta_slow);
    }
    if (rc == OK) {
        rc = find_field(&at, p, "original_max_position_embeddings", true, err);
    }
    if (rc == OK) {
        rc = config_size(&r->original_positions, at ? at->o : NULL,
                         "original_max_position_embeddings", 1, CONFIG_POSITIONS_MAX,
                         CONFIG_REQUIRED, err);
    }
    if (rc == OK) {
        /* The file keeps the trained length in max_position_embeddings when only the rope fields
         * are changed to yarn, as the models' cards advise. */
        double stretched = floor((double)r->original_positions * r->factor);

        if (stretched > (double)CONFIG_POSITIONS_MAX) {
            return error_set_param(err, ERR_FORMAT, "factor",
                                   "field 'factor' stretches the context to %g positions",
                                   stretched);
        }
        if (stretched > (double)c->max_positions) {
            c->max_positions = (size_t)stretched;
        }
    }
    return rc;
}

static enum status read_type(struct model_config *c, const struct places *p, struct error *err)
{
    const struct place *at, *old;
    const char *type = NULL, *old_type = NULL;
    enum status rc = find_field(&at, p, "rope_type", false, err);

    if (rc == OK) {
        rc = find_field(&old, p, "type", false, err);
    }
    if (rc == OK) {
        rc = json_get_string(&type, at ? at->o : NULL, "rope_type", ERR_FORMAT, err);
    }
    if (rc == OK) {
        rc = json_get_string(&old_type, old ? old->o : NULL, "type", ERR_FORMAT, err);
    }
    if (rc != OK) {
        return rc;
    }
    if (type && old_type && strcmp(type, old_type) != 0) {
        return error_set_param(err, ERR_FORMAT, "rope_type",
                               "fields 'rope_type' (%s) and 'type' (%s) differ", type, old_type);
    }
    type = type ? type : old_type;
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0) {
        return OK;
    }
    if (strcmp(type, "yarn") == 0) {
        return read_yarn(c, p, err);
    }
    return error_set_param(err, ERR_UNSUPPORTED, "rope_type", "rope_type '%s' is not supported",
                           type);
}

enum status rope_config_read(struct model_config *c, struct json_object *text,
                             struct json_object *outer, struct error *err)
{
    struct rope_config *r = &c->rope;
    struct places p;
    double rotating;
    enum status rc = collect_places(&p, text, outer, err);

    if (rc == OK) {
        rc = find_double(&r->theta, &p, "rope_theta", true, 1.0, ROPE_THETA_MAX, CONFIG_REQUIRED,
                         err);
    }
    if (rc == OK) {
        rc = find_double(&r->partial_factor, &p, "partial_rotary_factor", true, 0.0, 1.0,
                         CONFIG_REQUIRED, err);
    }
    if (rc != OK) {
        return rc;
    }
    rotating = (double)c->head_dim * r->partial_factor;
    r->n_dims = (size_t)(rotating + 0.5);
    if (r->n_dims < 2 || fabs(rotating - (double)r->n_dims) > 1e-6 || r->n_dims % 2 != 0) {
        return error_set_param(
            err, ERR_FORMAT, "partial_rotary_factor",
            "field 'partial_rotary_factor' (%g) times 'head_dim' (%zu) is not an "
            "even number of dimensions",
            r->partial_factor, c->head_dim);
    }
    rc = read_mrope(c, &p, err);
    return rc == OK ? read_type(c, &p, err) : rc;
}
