/* gptq_config.c - quantization_config and its `dynamic` rules.
 *
 * Place:  formats; see gptq.h.
 * Idea:   the defaults are one gptq_settings; a rule is a compiled pattern and the settings that hold
 *         when it matches, worked out once at load. Patterns come from a file that nobody vouches
 *         for, so compiling and matching run under limits. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "formats/config_fields.h"
#include "formats/gptq.h"
#include "formats/model_config.h"

enum { MATCH_HEAP_KIB_MAX = 1024, MODULE_NAME_BYTES_MAX = 4096 };

struct gptq_rule {
    pcre2_code *pattern;
    char *text; /* the key, for messages; owned */
    struct gptq_settings settings;
};

struct gptq_config {
    struct gptq_settings defaults;
    bool has_lm_head;
    struct gptq_rule *rules;
    size_t n_rules;
    pcre2_match_context *limits;
};

static enum status check_bits(unsigned *out, struct json_object *o, struct error *err)
{
    size_t bits = *out;
    enum status rc = config_size(&bits, o, "bits", 1, 64, CONFIG_OPTIONAL, err);

    if (rc == OK && bits != 4 && bits != 8) {
        rc = error_set_param(err, ERR_UNSUPPORTED, "bits",
                             "gptq with %zu bits is not supported (4 and 8 are)", bits);
    }
    *out = (unsigned)bits;
    return rc;
}

static enum status check_group_size(int64_t *out, struct json_object *o, struct error *err)
{
    int64_t g = *out;
    enum status rc = json_get_int(&g, o, "group_size", ERR_FORMAT, err);

    if (rc == OK && g != -1 && (g < 1 || g > CONFIG_DIM_MAX)) {
        rc = error_set_param(err, ERR_FORMAT, "group_size",
                             "field 'group_size' is %lld, neither -1 nor in 1..%d", (long long)g,
                             CONFIG_DIM_MAX);
    }
    *out = g;
    return rc;
}

/* The fields that the top level and an override share. Absent ones stay. */
static enum status read_settings(struct gptq_settings *s, struct json_object *o, struct error *err)
{
    enum status rc = check_bits(&s->bits, o, err);

    if (rc == OK) {
        rc = check_group_size(&s->group_size, o, err);
    }
    if (rc == OK) {
        rc = json_get_bool(&s->is_symmetric, o, "sym", ERR_FORMAT, err);
    }
    if (rc == OK) {
        rc = json_get_bool(&s->has_desc_act, o, "desc_act", ERR_FORMAT, err);
    }
    return rc;
}

/* checkpoint_format, in old files `format`. */
static enum status read_format(struct gptq_settings *s, struct json_object *o, struct error *err)
{
    const char *format = "gptq";
    bool is_marlin = false;
    enum status rc = json_get_string(&format, o, "format", ERR_FORMAT, err);

    if (rc == OK) {
        rc = json_get_string(&format, o, "checkpoint_format", ERR_FORMAT, err);
    }
    if (rc == OK) {
        rc = json_get_bool(&is_marlin, o, "is_marlin_format", ERR_FORMAT, err);
    }
    if (rc != OK) {
        return rc;
    }
    s->is_v2 = strcmp(format, "gptq_v2") == 0;
    if (is_marlin || (!s->is_v2 && strcmp(format, "gptq") != 0)) {
        return error_set_param(err, ERR_UNSUPPORTED, "checkpoint_format",
                               "checkpoint_format '%s' is not supported (gptq and gptq_v2 are)",
                               is_marlin ? "marlin" : format);
    }
    return OK;
}

static enum status read_method(struct json_object *o, struct error *err)
{
    const char *method = NULL, *pack = "int32";
    enum status rc = json_get_string(&method, o, "quant_method", ERR_FORMAT, err);

    if (rc == OK) {
        rc = json_get_string(&pack, o, "pack_dtype", ERR_FORMAT, err);
    }
    if (rc != OK) {
        return rc;
    }
    if (!method && !json_get(o, "bits")) { /* quantize_config.json of old files names no method */
        return config_missing("quant_method", err);
    }
    if (method && strcmp(method, "gptq") != 0) {
        return error_set_param(err, ERR_UNSUPPORTED, "quant_method",
                               "quantization '%s' is not supported (gptq is)", method);
    }
    if (strcmp(pack, "int32") != 0 && strcmp(pack, "torch.int32") != 0) {
        return error_set_param(err, ERR_UNSUPPORTED, "pack_dtype",
                               "field 'pack_dtype': '%s' is not supported (int32 is)", pack);
    }
    return json_get(o, "bits") ? OK : config_missing("bits", err);
}

/* ---- dynamic ---- */

static enum status compile_pattern(pcre2_code **out, const char *text, struct error *err)
{
    pcre2_compile_context *limits;
    int code = 0;
    size_t at = 0;

    if (strlen(text) > GPTQ_PATTERN_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "the pattern is longer than %d bytes",
                         GPTQ_PATTERN_BYTES_MAX);
    }
    limits = pcre2_compile_context_create(NULL);
    if (!limits) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a pattern");
    }
    pcre2_set_parens_nest_limit(limits, 64);
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                         PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, limits);
    pcre2_compile_context_free(limits);
    if (!*out) {
        PCRE2_UCHAR why[128];

        pcre2_get_error_message(code, why, sizeof why);
        return error_set(err, ERR_FORMAT, "not a valid pattern: %s at byte %zu", (const char *)why,
                         at);
    }
    return OK;
}

static enum status read_rule(struct gptq_rule *rule, const struct gptq_config *c, const char *key,
                             struct json_object *value, struct error *err)
{
    const char *pattern = key;
    enum status rc;

    rule->text = strdup(key);
    if (!rule->text) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a rule");
    }
    rule->settings = c->defaults;
    rule->settings.is_quantised = strncmp(key, "-:", 2) != 0;
    if (strncmp(key, "-:", 2) == 0 || strncmp(key, "+:", 2) == 0) {
        pattern += 2;
    }
    rc = compile_pattern(&rule->pattern, pattern, err);
    if (rc != OK || !value) {
        return rc;
    }
    if (!json_object_is_type(value, json_type_object)) {
        return error_set(err, ERR_FORMAT, "its value is not an object");
    }
    return rule->settings.is_quantised ? read_settings(&rule->settings, value, err) : OK;
}

static enum status read_rules(struct gptq_config *c, struct json_object *dynamic, struct error *err)
{
    size_t n;

    if (!dynamic) {
        return OK;
    }
    if (!json_object_is_type(dynamic, json_type_object)) {
        return error_set_param(err, ERR_FORMAT, "dynamic", "field 'dynamic' is not an object");
    }
    n = (size_t)json_object_object_length(dynamic);
    if (n > GPTQ_RULES_MAX) {
        return error_set_param(err, ERR_LIMIT, "dynamic",
                               "field 'dynamic' has %zu rules, more than %d", n, GPTQ_RULES_MAX);
    }
    c->rules = calloc(n + 1, sizeof *c->rules);
    c->limits = pcre2_match_context_create(NULL);
    if (!c->rules || !c->limits) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu rules", n);
    }
    pcre2_set_match_limit(c->limits, GPTQ_MATCH_STEPS_MAX);
    pcre2_set_depth_limit(c->limits, GPTQ_MATCH_STEPS_MAX);
    pcre2_set_heap_limit(c->limits, MATCH_HEAP_KIB_MAX);
    json_object_object_foreach(dynamic, key, value)
    {
        enum status rc = read_rule(&c->rules[c->n_rules++], c, key, value, err);

        if (rc != OK) {
            error_prefix(err, "rule '%.100s' of 'dynamic'", key);
            return rc;
        }
    }
    return OK;
}

/* ---- the config ---- */

static enum status read_config(struct gptq_config *c, struct json_object *o, struct error *err)
{
    enum status rc;

    c->defaults =
        (struct gptq_settings){.group_size = 128, .is_symmetric = true, .is_quantised = true};
    rc = read_method(o, err);
    if (rc == OK) {
        rc = read_format(&c->defaults, o, err);
    }
    if (rc == OK) {
        rc = read_settings(&c->defaults, o, err);
    }
    if (rc == OK) {
        rc = json_get_bool(&c->has_lm_head, o, "lm_head", ERR_FORMAT, err);
    }
    return rc == OK ? read_rules(c, json_get(o, "dynamic"), err) : rc;
}

enum status gptq_config_new(struct gptq_config **out, struct json_object *o, struct error *err)
{
    struct gptq_config *c;
    enum status rc;

    *out = NULL;
    if (!o) {
        return OK;
    }
    if (!json_object_is_type(o, json_type_object)) {
        return error_set(err, ERR_FORMAT, "quantization_config is not an object");
    }
    c = calloc(1, sizeof *c);
    if (!c) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the quantisation settings");
    }
    rc = read_config(c, o, err);
    if (rc != OK) {
        error_prefix(err, "quantization_config");
        gptq_config_free(c);
        return rc;
    }
    *out = c;
    return OK;
}

void gptq_config_free(struct gptq_config *c)
{
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->n_rules; i++) {
        pcre2_code_free(c->rules[i].pattern);
        free(c->rules[i].text);
    }
    free(c->rules);
    pcre2_match_context_free(c->limits);
    free(c);
}

const struct gptq_settings *gptq_config_default(const struct gptq_config *c)
{
    return &c->defaults;
}

/* The first matching rule, or NULL. */
static enum status find_rule(const struct gptq_rule **out, const struct gptq_config *c,
                             const char *name, struct error *err)
{
    pcre2_match_data *match;
    enum status rc = OK;

    *out = NULL;
    if (c->n_rules == 0) {
        return OK;
    }
    match = pcre2_match_data_create(1, NULL);
    if (!match) {
        return error_set(err, ERR_NO_MEMORY, "module '%s': cannot allocate a match", name);
    }
    for (size_t i = 0; i < c->n_rules && !*out; i++) {
        int found = pcre2_match(c->rules[i].pattern, (PCRE2_SPTR)name, strlen(name), 0, 0, match,
                                c->limits);

        if (found >= 0) {
            *out = &c->rules[i];
        } else if (found != PCRE2_ERROR_NOMATCH) {
            rc = error_set(err, ERR_FORMAT, "module '%s': rule '%.100s' of 'dynamic' gives up (%d)",
                           name, c->rules[i].text, found);
            break;
        }
    }
    pcre2_match_data_free(match);
    return rc;
}

enum status gptq_config_for(struct gptq_settings *out, const struct gptq_config *c,
                            const char *name, struct error *err)
{
    const struct gptq_rule *rule;
    struct str s = str_of(name);
    enum status rc;

    if (s.len > MODULE_NAME_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "module name '%.40s...' is too long", name);
    }
    rc = find_rule(&rule, c, name, err);
    if (rc != OK) {
        return rc;
    }
    *out = rule ? rule->settings : c->defaults;
    if (str_ends(s, STR("embed_tokens")) || (str_ends(s, STR("lm_head")) && !c->has_lm_head)) {
        out->is_quantised = false;
    }
    return OK;
}
