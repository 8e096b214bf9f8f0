/* flags_config.c - flags from a YAML file (--config).
 *
 * Idea: the file is one mapping from flag names to scalars or lists of scalars; nothing else of
 *       YAML is needed, and anything else is refused with its line. A scalar's text is read as on
 *       the command line, so a number has the same suffixes in both places. */
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file_map.h"
#include "base/str.h"
#include "cli/flags_internal.h"

static size_t line_of(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static bool is_null(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

/* The scalar's text, copied; NULL with an error when it is no scalar or holds a NUL byte. */
static char *scalar_copy(struct flags_ctx *ctx, const yaml_node_t *node, const char *key,
                         struct error *err)
{
    if (node->type != YAML_SCALAR_NODE) {
        error_set_param(err, ERR_USAGE, key, "line %zu: '%s' must be one value or a list of values",
                        line_of(node), key);
        return NULL;
    }
    size_t len = node->data.scalar.length;
    const char *text = (const char *)node->data.scalar.value;
    if (memchr(text, '\0', len)) {
        error_set_param(err, ERR_USAGE, key, "line %zu: '%s' holds a NUL byte", line_of(node), key);
        return NULL;
    }
    char *copy = arena_copy(&ctx->result->memory, text, len);
    if (!copy) {
        error_set(err, ERR_NO_MEMORY, "cannot allocate the value of '%s'", key);
    }
    return copy;
}

static enum status apply_list(struct flags_ctx *ctx, yaml_document_t *doc,
                              const struct flag_place *place, const yaml_node_t *node,
                              struct error *err)
{
    const yaml_node_item_t *begin = node->data.sequence.items.start;
    size_t n = (size_t)(node->data.sequence.items.top - begin);
    char **items = arena_array(&ctx->result->memory, n ? n : 1, sizeof *items);
    if (!items) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of '%s'", place->flag->name);
    }
    for (size_t i = 0; i < n; i++) {
        items[i] = scalar_copy(ctx, yaml_document_get_node(doc, begin[i]), place->flag->name, err);
        if (!items[i]) {
            return err->code;
        }
    }
    return n ? flags_apply(ctx, place, NULL, items, n, FLAG_FROM_CONFIG, err) : OK;
}

static enum status apply_scalar(struct flags_ctx *ctx, const struct flag_place *place,
                                const yaml_node_t *node, struct error *err)
{
    char *text = scalar_copy(ctx, node, place->flag->name, err);
    if (!text) {
        return err->code;
    }
    if (place->flag->kind == FLAG_BOOL) {
        bool yes = false;
        if (!flags_read_bool(&yes, text)) {
            return error_set_param(err, ERR_USAGE, place->flag->name,
                                   "--%s: '%.100s' is neither true nor false", place->flag->name,
                                   text);
        }
        return yes ? flags_apply(ctx, place, NULL, NULL, 0, FLAG_FROM_CONFIG, err) : OK;
    }
    if (place->flag->kind == FLAG_LIST) {
        char **items = arena_array(&ctx->result->memory, 1, sizeof *items);
        if (!items) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of '%s'",
                             place->flag->name);
        }
        items[0] = text;
        return flags_apply(ctx, place, NULL, items, 1, FLAG_FROM_CONFIG, err);
    }
    return flags_apply(ctx, place, text, NULL, 0, FLAG_FROM_CONFIG, err);
}

/* The flag of a key, which may be written with _ for -. */
static enum status find_key(struct flag_place *place, const struct flags_ctx *ctx,
                            const yaml_node_t *key, struct error *err)
{
    char name[FLAG_NAME_BYTES_MAX + 1];
    if (key->type != YAML_SCALAR_NODE) {
        return error_set(err, ERR_USAGE, "line %zu: a key must be a flag's name", line_of(key));
    }
    const char *text = (const char *)key->data.scalar.value;
    size_t len = key->data.scalar.length;
    bool fits = len <= FLAG_NAME_BYTES_MAX;
    for (size_t i = 0; fits && i < len; i++) {
        name[i] = text[i] == '_' ? '-' : text[i];
    }
    name[fits ? len : 0] = '\0';
    if (!fits || !flags_find(place, ctx, name, len)) {
        const char *nearest = fits ? flags_nearest(ctx, name) : NULL;
        return error_set_param(err, ERR_USAGE, name, "line %zu: unknown key '%.100s'%s%.*s%s",
                               line_of(key), text, nearest ? "; did you mean '" : "",
                               nearest ? (int)strcspn(nearest, ",") : 0, nearest ? nearest : "",
                               nearest ? "'?" : "");
    }
    for (size_t i = 0; i < ctx->groups[ctx->n_own].n_flags; i++) {
        if (place->flag == &ctx->groups[ctx->n_own].flags[i]) {
            return error_set_param(err, ERR_USAGE, name, "line %zu: '%s' cannot stand in the file",
                                   line_of(key), name);
        }
    }
    return OK;
}

static enum status apply_pair(struct flags_ctx *ctx, yaml_document_t *doc,
                              const yaml_node_pair_t *pair, struct error *err)
{
    const yaml_node_t *key = yaml_document_get_node(doc, pair->key);
    const yaml_node_t *value = yaml_document_get_node(doc, pair->value);
    struct flag_place place = {0};
    enum status rc = find_key(&place, ctx, key, err);
    if (rc != OK) {
        return rc;
    }
    if (flags_given(ctx->result, place.flag->name)) {
        return error_set_param(err, ERR_USAGE, place.flag->name, "line %zu: '%s' stands twice",
                               line_of(key), place.flag->name);
    }
    if (value->type == YAML_SCALAR_NODE && is_null(value)) {
        return OK;
    }
    if (value->type == YAML_SEQUENCE_NODE && place.flag->kind == FLAG_LIST) {
        return apply_list(ctx, doc, &place, value, err);
    }
    rc = apply_scalar(ctx, &place, value, err);
    if (rc != OK && strncmp(err->text, "line ", 5) != 0) {
        error_prefix(err, "line %zu", line_of(key));
    }
    return rc;
}

static enum status apply_document(struct flags_ctx *ctx, yaml_document_t *doc, struct error *err)
{
    const yaml_node_t *root = yaml_document_get_root_node(doc);
    if (!root || (root->type == YAML_SCALAR_NODE && is_null(root))) {
        return OK; /* an empty file */
    }
    if (root->type != YAML_MAPPING_NODE) {
        return error_set(err, ERR_USAGE, "line %zu: expected lines of the form 'flag: value'",
                         line_of(root));
    }
    const yaml_node_pair_t *end = root->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < end; p++) {
        enum status rc = apply_pair(ctx, doc, p, err);
        if (rc != OK) {
            return rc;
        }
    }
    return OK;
}

enum status flags_read_config_text(struct flags_ctx *ctx, const char *text, size_t len,
                                   struct error *err)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    if (!yaml_parser_initialize(&parser)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a YAML parser");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    enum status rc = OK;
    if (!yaml_parser_load(&parser, &doc)) {
        rc = error_set(err, ERR_USAGE, "line %zu: %s", parser.problem_mark.line + 1,
                       parser.problem ? parser.problem : "not YAML");
    } else {
        rc = apply_document(ctx, &doc, err);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return rc;
}

enum status flags_read_config(struct flags_ctx *ctx, const char *path, struct error *err)
{
    char *text = NULL;
    size_t len = 0;
    enum status rc = file_read(&text, &len, path, FLAGS_CONFIG_BYTES_MAX, err);
    if (rc == OK) {
        rc = flags_read_config_text(ctx, text, len, err);
    } else {
        err->code = rc = ERR_USAGE; /* a wrong --config, not a missing model */
    }
    free(text);
    if (rc != OK) {
        error_prefix(err, "config file '%s'", path);
    }
    return rc;
}
