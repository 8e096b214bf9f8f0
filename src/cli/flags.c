/* flags.c - the command line, and the order in which the sources of flags are applied.
 *
 * Place: cli. Names are found in flags_name.c, values checked and stored in flags_apply.c (numbers:
 *        flags_value.c), environment and YAML read in flags_env.c and flags_config.c, print-outs made
 *        in flags_help.c.
 * Idea:  argv is scanned once into a list of uses; --config is known only after that, so the values
 *        are applied afterwards: file, environment, command line. The later one wins by simply
 *        storing over the earlier one. */
#include "cli/flags.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/flags_internal.h"

struct builtin_options {
    const char *config;
    bool help, help_man;
};

static const struct flag builtin_flags[] = {
    {.name = "config",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct builtin_options, config),
     .metavar = "FILE",
     .help = "read flags from a YAML file; the environment and the command line win over it"},
    {.name = "help",
     .aliases = "h",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct builtin_options, help),
     .help = "print this text"},
    {.name = "help-man", /* for the manual page; not shown */
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct builtin_options, help_man)},
};

/* ---- the command line ----------------------------------------------------------------------- */

/* "-5", "-1.5K": a value, not a flag. Anything with a space is text, as argparse has it. */
static bool looks_like_flag(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0' && !(arg[1] >= '0' && arg[1] <= '9') && arg[1] != '.' &&
           !strchr(arg, ' ');
}

struct flag_use {
    struct flag_place place;
    const char *text;
    char **items;
    size_t n_items;
};

struct argv_scan {
    char **argv;
    int argc, at;
    struct flag_use *uses; /* [argc], in a scratch arena */
    size_t n_uses;
};

/* Copies the list's items: argv itself is permuted afterwards. */
static enum status scan_list(struct flags_ctx *ctx, struct argv_scan *s, struct flag_use *use,
                             struct error *err)
{
    int end = s->at;
    while (end < s->argc && !looks_like_flag(s->argv[end])) {
        end++;
    }
    if (end == s->at) {
        return error_set_param(err, ERR_USAGE, use->place.flag->name, "--%s needs a value",
                               use->place.flag->name);
    }
    use->n_items = (size_t)(end - s->at);
    use->items = arena_array(&ctx->result->memory, use->n_items, sizeof *use->items);
    if (!use->items) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of --%s",
                         use->place.flag->name);
    }
    memcpy(use->items, s->argv + s->at, use->n_items * sizeof *use->items);
    s->at = end;
    return OK;
}

/* The argument at s->at is a flag; it and its values are consumed. */
static enum status scan_flag(struct flags_ctx *ctx, struct argv_scan *s, struct error *err)
{
    const char *given = s->argv[s->at++];
    const char *arg = strcmp(given, "-h") == 0 ? "--help" : given;
    struct flag_use *use = &s->uses[s->n_uses];
    if (arg[1] != '-') {
        return error_set_param(err, ERR_USAGE, arg,
                               "unknown flag '%.100s': flags begin with two dashes", arg);
    }
    size_t len = strcspn(arg + 2, "=");
    const char *attached = arg[2 + len] == '=' ? arg + 3 + len : NULL;
    enum status rc = flags_resolve(&use->place, ctx, arg, len, err);
    if (rc != OK) {
        return rc;
    }
    const struct flag *flag = use->place.flag;
    s->n_uses++;
    if (flag->kind == FLAG_BOOL) {
        return attached
                   ? error_set_param(err, ERR_USAGE, flag->name, "--%s takes no value", flag->name)
                   : OK;
    }
    if (flag->kind == FLAG_LIST && !attached) {
        return scan_list(ctx, s, use, err);
    }
    if (!attached) {
        if (s->at == s->argc || looks_like_flag(s->argv[s->at])) {
            return error_set_param(err, ERR_USAGE, flag->name, "--%s needs a value", flag->name);
        }
        attached = s->argv[s->at++];
    }
    use->text = attached;
    if (flag->kind == FLAG_LIST) {
        use->n_items = 1;
        use->items = arena_array(&ctx->result->memory, 1, sizeof *use->items);
        if (!use->items) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of --%s", flag->name);
        }
        use->items[0] = arena_copy(&ctx->result->memory, attached, strlen(attached));
        if (!use->items[0]) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of --%s", flag->name);
        }
    }
    return OK;
}

/* Fills uses; positional arguments move to the front of argv. */
static enum status scan_argv(struct flags_ctx *ctx, struct argv_scan *s, struct error *err)
{
    struct flag_result *r = ctx->result;
    bool flags_ended = false;
    r->positional = s->argv;
    while (s->at < s->argc) {
        char *arg = s->argv[s->at];
        if (!flags_ended && strcmp(arg, "--") == 0) {
            flags_ended = true;
            s->at++;
            continue;
        }
        if (!flags_ended && looks_like_flag(arg)) {
            enum status rc = scan_flag(ctx, s, err);
            if (rc != OK) {
                return rc;
            }
            continue;
        }
        s->at++;
        s->argv[r->n_positional++] = arg;
        if (r->n_positional > ctx->positional_max) {
            return error_set_param(err, ERR_USAGE, arg, "unexpected argument '%.200s'", arg);
        }
    }
    return OK;
}

static enum status apply_uses(struct flags_ctx *ctx, const struct argv_scan *s, struct error *err)
{
    for (size_t i = 0; i < s->n_uses; i++) {
        const struct flag_use *u = &s->uses[i];
        enum status rc =
            flags_apply(ctx, &u->place, u->text, u->items, u->n_items, FLAG_FROM_ARGV, err);
        if (rc != OK) {
            return rc;
        }
    }
    return OK;
}

/* ---- all together --------------------------------------------------------------------------- */

/* The file that --config names, else SPILLWAY_CONFIG; NULL: none. */
static enum status find_config(const char **path, const struct argv_scan *s, struct error *err)
{
    *path = NULL;
    for (size_t i = 0; i < s->n_uses; i++) {
        if (strcmp(s->uses[i].place.flag->name, "config") != 0) {
            continue;
        }
        if (*path) {
            return error_set_param(err, ERR_USAGE, "config", "--config may be given once");
        }
        *path = s->uses[i].text;
    }
    const char *from_env = getenv("SPILLWAY_CONFIG");
    if (!*path && from_env && from_env[0]) {
        *path = from_env;
    }
    return OK;
}

static bool help_wanted(const struct flags_ctx *ctx, const struct argv_scan *s)
{
    for (size_t i = 0; i < s->n_uses; i++) {
        if (strcmp(s->uses[i].place.flag->name, "help") == 0) {
            flags_print_help(ctx);
            return true;
        }
        if (strcmp(s->uses[i].place.flag->name, "help-man") == 0) {
            flags_print_man(ctx);
            return true;
        }
    }
    return false;
}

static enum status parse_all(struct flags_ctx *ctx, struct argv_scan *s, struct error *err)
{
    enum status rc = scan_argv(ctx, s, err);
    if (rc != OK) {
        return rc;
    }
    if (help_wanted(ctx, s)) { /* before any value is stored: the defaults are printed */
        ctx->result->help = true;
        return OK;
    }
    const char *path = NULL;
    rc = find_config(&path, s, err);
    if (path && rc == OK) {
        rc = flags_read_config(ctx, path, err);
    }
    if (rc == OK) {
        rc = flags_read_env(ctx, err);
    }
    return rc == OK ? apply_uses(ctx, s, err) : rc;
}

static void print_usage(const struct flags_ctx *ctx)
{
    struct buf line;
    buf_init(&line);
    flags_usage_line(&line, ctx);
    fputs(buf_cstr(&line), stderr);
    buf_release(&line);
}

enum status flags_parse(struct flag_result *out, const struct command *cmd,
                        const struct flag_group *groups, size_t n_groups, size_t positional_max,
                        int argc, char **argv, const struct log *log, struct error *err)
{
    struct builtin_options builtin = {0};
    struct flags_ctx ctx = {
        .cmd = cmd, .n_own = n_groups, .positional_max = positional_max, .result = out};
    struct arena scratch;
    struct error local = {0};
    size_t n_flags = sizeof builtin_flags / sizeof builtin_flags[0];

    memset(out, 0, sizeof *out);
    arena_init(&out->memory, 0);
    arena_init(&scratch, 0);
    err = err ? err : &local;
    assert(n_groups < FLAG_GROUPS_MAX);
    for (size_t g = 0; g < n_groups; g++) {
        ctx.groups[g] = groups[g];
        n_flags += groups[g].n_flags;
    }
    assert(n_flags <= FLAGS_MAX);
    ctx.groups[n_groups] = (struct flag_group){
        "General", builtin_flags, sizeof builtin_flags / sizeof builtin_flags[0], &builtin};
    ctx.n_groups = n_groups + 1;

    struct argv_scan scan = {.argv = argv, .argc = argc};
    scan.uses = arena_array(&scratch, (size_t)argc + 1, sizeof *scan.uses);
    enum status rc = scan.uses ? parse_all(&ctx, &scan, err)
                               : error_set(err, ERR_NO_MEMORY, "cannot allocate the flags");
    arena_release(&scratch);
    if (rc == ERR_USAGE) {
        print_usage(&ctx);
    }
    if (rc == OK && !out->help) {
        flags_print_notes(out, log);
    }
    if (rc != OK) {
        flags_release(out);
    }
    return rc;
}

void flags_release(struct flag_result *r)
{
    arena_release(&r->memory);
}

static size_t seen_index(const struct flag_result *r, const char *name)
{
    size_t i = 0;
    while (i < r->n_seen && strcmp(r->seen[i]->name, name) != 0) {
        i++;
    }
    return i;
}

bool flags_given(const struct flag_result *r, const char *name)
{
    return seen_index(r, name) < r->n_seen;
}

bool flags_typed(const struct flag_result *r, const char *name)
{
    size_t i = seen_index(r, name);
    return i < r->n_seen && r->source[i] == FLAG_FROM_ARGV;
}

const char *flags_text(const struct flag_result *r, const char *name)
{
    size_t i = seen_index(r, name);
    return i < r->n_seen ? r->seen_text[i] : NULL;
}

void flags_print_notes(const struct flag_result *r, const struct log *log)
{
    for (size_t i = 0; i < r->n_seen; i++) {
        if (r->seen[i]->no_effect) {
            log_warning(log, "--%s%s%s: accepted, no effect here: %s", r->seen[i]->name,
                        r->seen_text[i][0] ? " " : "", r->seen_text[i], r->seen[i]->no_effect);
        }
    }
}
