/* flags_apply.c - checks one value against its flag and stores it in the options struct. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cli/flags_internal.h"

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
