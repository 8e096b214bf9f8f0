/* flags_env.c - flags from the environment: --some-flag is SPILLWAY_SOME_FLAG. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/flags_internal.h"

struct env_search {
    const char *variable_value;
    char variable[FLAG_NAME_BYTES_MAX + 16];
};

static bool search_env(void *ctx, const char *name, size_t len)
{
    struct env_search *s = ctx;
    int at = snprintf(s->variable, sizeof s->variable, "SPILLWAY_");
    for (size_t i = 0; i < len && at < (int)sizeof s->variable - 1; i++, at++) {
        char c = name[i];
        s->variable[at] = c == '-' ? '_' : (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
    s->variable[at] = '\0';
    s->variable_value = len > 1 ? getenv(s->variable) : NULL;
    if (s->variable_value && s->variable_value[0] == '\0') {
        s->variable_value = NULL; /* containers set variables to "" to mean "not set" */
    }
    return !s->variable_value;
}

/* Items of a list are separated by commas or blanks. */
static char **split_items(struct flag_result *r, const char *text, size_t *n)
{
    static const char separators[] = ", \t\n";
    char *copy = arena_copy(&r->memory, text, strlen(text));
    char **items = arena_array(&r->memory, strlen(text) / 2 + 1, sizeof *items);
    char *save = NULL;
    *n = 0;
    if (!copy || !items) {
        return NULL;
    }
    for (char *p = strtok_r(copy, separators, &save); p; p = strtok_r(NULL, separators, &save)) {
        items[(*n)++] = p;
    }
    return items;
}

static enum status apply_env_flag(struct flags_ctx *ctx, const struct flag_place *place,
                                  struct error *err)
{
    struct env_search s = {0};
    flag_each_name(place->flag, search_env, &s);
    if (!s.variable_value) {
        return OK;
    }
    char **items = NULL;
    size_t n_items = 0;
    enum status rc = OK;
    if (place->flag->kind == FLAG_BOOL) {
        bool yes = false;
        if (!flags_read_bool(&yes, s.variable_value)) {
            return error_set_param(err, ERR_USAGE, place->flag->name,
                                   "environment variable %s: '%.100s' is neither true nor false",
                                   s.variable, s.variable_value);
        }
        if (!yes) {
            return OK;
        }
    } else if (place->flag->kind == FLAG_LIST) {
        items = split_items(ctx->result, s.variable_value, &n_items);
        rc = items ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate a list");
    }
    if (rc == OK) {
        rc = flags_apply(ctx, place, s.variable_value, items, n_items, FLAG_FROM_ENV, err);
    }
    if (rc != OK) {
        /* Kubernetes defines SPILLWAY_PORT=tcp://... in every pod beside a service "spillway". */
        bool is_service_link = strncmp(s.variable_value, "tcp://", 6) == 0;
        error_prefix(err, "environment variable %s%s", s.variable,
                     is_service_link ? " (set by Kubernetes for a service of this name; rename the "
                                       "service or set enableServiceLinks: false)"
                                     : "");
    }
    return rc;
}

enum status flags_read_env(struct flags_ctx *ctx, struct error *err)
{
    for (size_t g = 0; g < ctx->n_own; g++) {
        for (size_t i = 0; i < ctx->groups[g].n_flags; i++) {
            struct flag_place place = {&ctx->groups[g].flags[i], ctx->groups[g].options};
            enum status rc = apply_env_flag(ctx, &place, err);
            if (rc != OK) {
                return rc;
            }
        }
    }
    return OK;
}
