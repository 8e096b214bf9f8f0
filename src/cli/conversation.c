/* conversation.c - see conversation.h. */
#include "cli/conversation.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool add_text(struct json_object *o, const char *key, struct str text)
{
    if (text.len > INT_MAX) {
        return false;
    }
    struct json_object *s = json_object_new_string_len(text.ptr ? text.ptr : "", (int)text.len);
    if (!s || json_object_object_add(o, key, s) != 0) {
        json_object_put(s);
        return false;
    }
    return true;
}

static struct json_object *new_message(const char *role, struct str content)
{
    struct json_object *m = json_object_new_object();
    if (m && add_text(m, "role", str_of(role)) && add_text(m, "content", content)) {
        return m;
    }
    json_object_put(m);
    return NULL;
}

/* Takes m (NULL: failure). */
static bool append(struct json_object *messages, struct json_object *m)
{
    if (!m || json_object_array_add(messages, m) != 0) {
        json_object_put(m);
        return false;
    }
    return true;
}

bool conversation_init(struct conversation *c)
{
    *c = (struct conversation){.messages = json_object_new_array()};
    return c->messages != NULL;
}

void conversation_release(struct conversation *c)
{
    json_object_put(c->messages);
    *c = (struct conversation){0};
}

bool conversation_clear(struct conversation *c)
{
    size_t keep = c->has_system ? 1 : 0, n = json_object_array_length(c->messages);
    return n == keep || json_object_array_del_idx(c->messages, keep, n - keep) == 0;
}

bool conversation_set_system(struct conversation *c, struct str text)
{
    struct json_object *fresh = json_object_new_array();
    if (!fresh || (text.len > 0 && !append(fresh, new_message("system", text)))) {
        json_object_put(fresh);
        return false;
    }
    json_object_put(c->messages);
    c->messages = fresh;
    c->has_system = text.len > 0;
    return true;
}

bool conversation_add_user(struct conversation *c, struct str text)
{
    return append(c->messages, new_message("user", text));
}

bool conversation_add_answer(struct conversation *c, struct str thinking, struct str content)
{
    struct json_object *m = new_message("assistant", content);
    if (m && thinking.len > 0 && !add_text(m, "reasoning_content", thinking)) {
        json_object_put(m);
        m = NULL;
    }
    return append(c->messages, m);
}

void conversation_drop_last(struct conversation *c)
{
    size_t n = json_object_array_length(c->messages);
    if (n > (c->has_system ? 1u : 0u)) {
        json_object_array_del_idx(c->messages, n - 1, 1);
    }
}

size_t conversation_turns(const struct conversation *c)
{
    return json_object_array_length(c->messages) - (c->has_system ? 1 : 0);
}

enum status conversation_save(const struct conversation *c, const char *path, struct error *err)
{
    const struct json_python_style style = {.indent = 2};
    struct buf text;
    buf_init(&text);
    buf_append_str(&text, "{\"messages\": ");
    json_write_python(&text, c->messages, &style);
    buf_append_str(&text, "}\n");
    enum status rc = OK;
    FILE *f = buf_ok(&text) ? fopen(path, "we") : NULL;
    if (!buf_ok(&text)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the file's text");
    } else if (!f) {
        rc = error_set(err, ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    } else {
        bool ok = fwrite(text.data, 1, text.len, f) == text.len;
        ok = fclose(f) == 0 && ok;
        rc = ok ? OK : error_set(err, ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    }
    buf_release(&text);
    return rc;
}
