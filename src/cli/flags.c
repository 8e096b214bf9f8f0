/* flags.c - finding flags by name, and applying argv, environment and config file in order.
 *
 * Place: cli. Numbers are in flags_value.c, YAML in flags_config.c, print-outs in flags_help.c.
 * Idea:  argv is scanned once into a list of uses; --config is known only after that, so the values
 *        are applied afterwards: file, environment, command line. The later one wins by simply
 *        storing over the earlier one. */
#include "cli/flags.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
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

/* ---- names ---------------------------------------------------------------------------------- */

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

/* name: `len` bytes after the dashes of arg. */
static enum status resolve_flag(struct flag_place *out, const struct flags_ctx *ctx,
                                const char *arg, size_t len, struct error *err)
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

/* ---- values --------------------------------------------------------------------------------- */

static enum status check_range(const struct flag *flag, double value, const char *text,
                               struct error *err)
{
    if (flag->min < flag->max && (value < flag->min || value > flag->max)) {
        return error_set_param(err, ERR_USAGE, flag->name, "--%s: %s is outside %.15g..%.15g",
                               flag->name, text, flag->min, flag->max);
    }
    return OK;
}

static enum status check_choice(const struct flag *flag, const char *text, struct error *err)
{
    char nearest[FLAG_NAME_BYTES_MAX + 1] = "";
    size_t best = strlen(text) / 2 + 1;
    for (const char *p = flag->choices; *p;) {
        size_t len = strcspn(p, "|");
        if (strlen(text) == len && memcmp(p, text, len) == 0) {
            return OK;
        }
        if (len <= FLAG_NAME_BYTES_MAX) {
            char candidate[FLAG_NAME_BYTES_MAX + 1];
            memcpy(candidate, p, len);
            candidate[len] = '\0';
            size_t distance = str_distance(text, candidate);
            if (distance < best) {
                best = distance;
                memcpy(nearest, candidate, len + 1);
            }
        }
        p += len + (p[len] == '|');
    }
    if (nearest[0]) {
        return error_set_param(err, ERR_USAGE, flag->name,
                               "--%s: '%.100s' is not one of %s; did you mean '%s'?", flag->name,
                               text, flag->choices, nearest);
    }
    return error_set_param(err, ERR_USAGE, flag->name, "--%s: '%.100s' is not one of %s",
                           flag->name, text, flag->choices);
}

union flag_value {
    bool yes;
    size_t size;
    int64_t integer;
    double number;
    const char *text;
    struct flag_list list;
};

static enum status read_value(union flag_value *out, size_t *n_bytes, const struct flag *flag,
                              const char *text, struct error *err)
{
    char what[FLAG_NAME_BYTES_MAX + 3];
    snprintf(what, sizeof what, "--%.64s", flag->name);
    enum status rc = OK;
    switch (flag->kind) {
    case FLAG_SIZE:
        *n_bytes = sizeof out->size;
        rc = flag_read_size(&out->size, text, what, err);
        return rc == OK ? check_range(flag, (double)out->size, text, err) : rc;
    case FLAG_INT:
        *n_bytes = sizeof out->integer;
        rc = flag_read_int(&out->integer, text, what, err);
        return rc == OK ? check_range(flag, (double)out->integer, text, err) : rc;
    case FLAG_DOUBLE:
        *n_bytes = sizeof out->number;
        rc = flag_read_double(&out->number, text, what, err);
        return rc == OK ? check_range(flag, out->number, text, err) : rc;
    case FLAG_CHOICE:
        rc = check_choice(flag, text, err);
        break;
    default:
        break;
    }
    out->text = text;
    *n_bytes = sizeof out->text;
    return rc;
}

static void note_seen(struct flag_result *r, const struct flag *flag, const char *text,
                      enum flag_source source)
{
    size_t at = 0;
    while (at < r->n_seen && r->seen[at] != flag) {
        at++;
    }
    assert(at < FLAGS_MAX); /* flags_parse counted the tables */
    r->seen[at] = flag;
    r->seen_text[at] = text;
    r->source[at] = source;
    r->n_seen += at == r->n_seen;
}

/* "1 2 4", for notes; borrowed from the result's memory. */
static const char *join_items(struct flag_result *r, char **items, size_t n)
{
    struct buf b;
    buf_init(&b);
    for (size_t i = 0; i < n; i++) {
        buf_appendf(&b, "%s%s", i ? " " : "", items[i]);
    }
    char *text = arena_copy(&r->memory, buf_cstr(&b), b.len);
    buf_release(&b);
    return text ? text : "";
}

enum status flags_apply(struct flags_ctx *ctx, const struct flag_place *place, const char *text,
                        char **items, size_t n_items, enum flag_source source, struct error *err)
{
    const struct flag *flag = place->flag;
    union flag_value value = {0};
    size_t n_bytes = 0;
    enum status rc = OK;

    if (flag->kind == FLAG_BOOL) {
        value.yes = true;
        n_bytes = sizeof value.yes;
    } else if (flag->kind == FLAG_LIST) {
        value.list = (struct flag_list){items, n_items};
        n_bytes = sizeof value.list;
        text = join_items(ctx->result, items, n_items);
    } else {
        rc = read_value(&value, &n_bytes, flag, text, err);
    }
    if (rc != OK) {
        return rc;
    }
    note_seen(ctx->result, flag, text ? text : "", source);
    if (!flag->no_effect) {
        memcpy((char *)place->options + flag->offset, &value, n_bytes);
    }
    return OK;
}

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
    enum status rc = resolve_flag(&use->place, ctx, arg, len, err);
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

/* ---- the environment ------------------------------------------------------------------------ */

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

static enum status apply_env(struct flags_ctx *ctx, struct error *err)
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
        rc = apply_env(ctx, err);
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
