/* flags_name.c - finding a flag by its name, an alias, a unique prefix; or the nearest one. */
#include <string.h>

#include "base/str.h"
#include "cli/flags_internal.h"

void flag_each_name(const struct flag *flag, flag_name_fn *fn, void *ctx)
{
    if (!fn(ctx, flag->name, strlen(flag->name))) {
        return;
    }
    for (const char *p = flag->aliases; p && *p;) {
        size_t len = strcspn(p, ",");
        if (!fn(ctx, p, len)) {
            return;
        }
        p += len + (p[len] == ',');
    }
}

struct name_search {
    struct str wanted;
    bool exact, starts;
    const char *start_name; /* the first name that begins with `wanted` */
    size_t start_len;
};

static bool search_name(void *ctx, const char *name, size_t len)
{
    struct name_search *s = ctx;
    struct str candidate = {name, len};
    if (str_eq(candidate, s->wanted)) {
        s->exact = true;
        return false;
    }
    if (!s->starts && str_starts(candidate, s->wanted)) {
        s->starts = true;
        s->start_name = name;
        s->start_len = len;
    }
    return true;
}

bool flags_find(struct flag_place *out, const struct flags_ctx *ctx, const char *name, size_t len)
{
    for (size_t g = 0; g < ctx->n_groups; g++) {
        for (size_t i = 0; i < ctx->groups[g].n_flags; i++) {
            struct name_search s = {.wanted = {name, len}};
            flag_each_name(&ctx->groups[g].flags[i], search_name, &s);
            if (s.exact) {
                *out = (struct flag_place){&ctx->groups[g].flags[i], ctx->groups[g].options};
                return true;
            }
        }
    }
    return false;
}

/* All flags with a name that begins so: the only one into *out; several are listed in `names`. */
static size_t find_by_prefix(struct flag_place *out, struct buf *names, const struct flags_ctx *ctx,
                             const char *prefix, size_t len)
{
    size_t n = 0;
    for (size_t g = 0; g < ctx->n_groups; g++) {
        for (size_t i = 0; i < ctx->groups[g].n_flags; i++) {
            struct name_search s = {.wanted = {prefix, len}};
            flag_each_name(&ctx->groups[g].flags[i], search_name, &s);
            if (!s.starts) {
                continue;
            }
            *out = (struct flag_place){&ctx->groups[g].flags[i], ctx->groups[g].options};
            buf_appendf(names, "%s--%.*s", n ? ", " : "", (int)s.start_len, s.start_name);
            n++;
        }
    }
    return n;
}

struct nearest_search {
    const char *wanted;
    size_t best;
    const char *name;
};

static bool nearest_name(void *ctx, const char *name, size_t len)
{
    struct nearest_search *s = ctx;
    char candidate[FLAG_NAME_BYTES_MAX + 1];
    if (len > FLAG_NAME_BYTES_MAX) {
        return true;
    }
    memcpy(candidate, name, len);
    candidate[len] = '\0';
    size_t distance = str_distance(s->wanted, candidate);
    if (distance < s->best) {
        s->best = distance;
        s->name = name; /* an alias is followed by ',': printed by its length */
    }
    return true;
}

const char *flags_nearest(const struct flags_ctx *ctx, const char *name)
{
    /* A third of the letters may be wrong; more would be guessing. */
    struct nearest_search s = {.wanted = name, .best = strlen(name) / 3 + 2};
    for (size_t g = 0; g < ctx->n_groups; g++) {
        for (size_t i = 0; i < ctx->groups[g].n_flags; i++) {
            flag_each_name(&ctx->groups[g].flags[i], nearest_name, &s);
        }
    }
    return s.name;
}

static enum status unknown_flag(const struct flags_ctx *ctx, const char *arg, size_t len,
                                struct error *err)
{
    char name[FLAG_NAME_BYTES_MAX + 1] = "";
    const char *nearest = NULL;
    if (len <= FLAG_NAME_BYTES_MAX) {
        for (size_t i = 0; i < len; i++) {
            name[i] = arg[2 + i];
            if (name[i] == '_') {
                name[i] = '-';
            }
        }
        nearest = flags_nearest(ctx, name);
    }
    if (nearest) {
        return error_set_param(err, ERR_USAGE, arg, "unknown flag '%.*s'; did you mean '--%.*s'?",
                               (int)(len + 2), arg, (int)strcspn(nearest, ","), nearest);
    }
    return error_set_param(err, ERR_USAGE, arg,
                           "unknown flag '%.100s' ('spillway %s --help' lists all)", arg,
                           ctx->cmd->name);
}

enum status flags_resolve(struct flag_place *out, const struct flags_ctx *ctx, const char *arg,
                          size_t len, struct error *err)
{
    if (flags_find(out, ctx, arg + 2, len)) {
        return OK;
    }
    struct buf names;
    buf_init(&names);
    size_t n = len ? find_by_prefix(out, &names, ctx, arg + 2, len) : 0;
    enum status rc = OK;
    if (n == 0) {
        rc = unknown_flag(ctx, arg, len, err);
    } else if (n > 1) {
        rc = error_set_param(err, ERR_USAGE, arg, "'%.*s' is short for several flags: %s",
                             (int)(len + 2), arg, buf_cstr(&names));
    }
    buf_release(&names);
    return rc;
}
