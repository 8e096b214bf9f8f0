/* settings.c - see settings.h. */
#include "cli/settings.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct setting *next_row(struct settings *s, const char *name, const char *why)
{
    if (s->n == SETTINGS_MAX) {
        return NULL;
    }
    struct setting *row = &s->rows[s->n++];
    *row = (struct setting){.name = name, .why = why};
    return row;
}

void settings_add(struct settings *s, const char *name, const char *asked, const char *why,
                  const char *done_fmt, ...)
{
    struct setting *row = next_row(s, name, why);
    va_list ap;
    if (!row) {
        return;
    }
    snprintf(row->asked, sizeof row->asked, "%s", asked && asked[0] ? asked : "-");
    va_start(ap, done_fmt);
    vsnprintf(row->done, sizeof row->done, done_fmt, ap);
    va_end(ap);
}

void settings_add_size(struct settings *s, const char *name, size_t asked, const char *why,
                       size_t done)
{
    char text[32] = "";
    if (asked) {
        snprintf(text, sizeof text, "%zu", asked);
    }
    settings_add(s, name, text, why, "%zu", done);
}

void settings_warn(struct settings *s)
{
    assert(s->n > 0);
    s->rows[s->n - 1].is_warning = true;
}

void settings_print(const struct settings *s, const struct log *log, bool quiet)
{
    if (!quiet) {
        log_info(log, "effective settings: %-22s %-14s %s", "", "asked", "done");
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct setting *row = &s->rows[i];
        if (quiet && !row->is_warning) {
            continue;
        }
        log_line(log, row->is_warning ? LOG_WARNING : LOG_INFO, "  %-39s  %-14s %s%s%s%s",
                 row->name, row->asked, row->done, row->why ? " (" : "", row->why ? row->why : "",
                 row->why ? ")" : "");
    }
}

static struct json_object *value_of(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    if (digits > 0 && digits < 19 && text[digits] == '\0') {
        return json_object_new_int64(strtoll(text, NULL, 10));
    }
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        return json_object_new_boolean(text[0] == 't');
    }
    return json_object_new_string(text);
}

struct json_object *settings_json(const struct settings *s)
{
    struct json_object *o = json_object_new_object();
    for (size_t i = 0; o && i < s->n; i++) {
        char key[SETTING_TEXT_BYTES];
        snprintf(key, sizeof key, "%s", s->rows[i].name);
        for (char *c = key; *c; c++) {
            *c = *c == '-' ? '_' : *c;
        }
        struct json_object *value = value_of(s->rows[i].done);
        if (!value || json_object_object_add(o, key, value) != 0) {
            json_object_put(value);
            json_object_put(o);
            return NULL;
        }
    }
    return o;
}
