/* jinja_value.c - making, growing and walking values. See jinja_value.h.
 *
 * Strings that grow by "+" keep a `room`: the text builder that their bytes are the start of. Joining
 * to such a string appends in place; older strings keep seeing their own length. When the builder
 * moves to larger memory, older strings keep the old copy, which stays until the run ends. */
#include "text/jinja_value.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "text/jinja_run.h"

enum {
    STEP_BYTES = 64,      /* of copied text cost one step */
    ROOM_MIN_BYTES = 256, /* shorter joins are copied, longer ones keep room to grow */
    DICT_LINEAR_MAX = 8   /* entries that are searched without a table */
};

/* ---- the run ---- */

bool jinja_fail(struct jinja_run *j, const char *fmt, ...)
{
    char text[ERROR_TEXT_BYTES - 32];
    va_list args;

    if (!j->failed) {
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        text[utf8_valid_prefix(text, strlen(text))] = '\0'; /* cut inside a character */
        (void)error_set(&j->error, ERR_BAD_REQUEST, "line %d: %s", j->line, text);
        j->failed = true;
    }
    return false;
}

static bool fail_limit(struct jinja_run *j, const char *what, size_t limit)
{
    if (!j->failed) {
        (void)error_set(&j->error, ERR_LIMIT, "line %d: rendering needs more than %zu %s", j->line,
                        limit, what);
        j->failed = true;
    }
    return false;
}

void *jinja_alloc(struct jinja_run *j, size_t n, size_t each)
{
    void *p = arena_array(&j->arena, n, each);
    size_t bytes, total;

    if (!p && !j->failed && size_mul(&bytes, n, each) &&
        size_add(&total, j->arena.used_bytes, bytes) && total + 16 < j->arena.bytes_max) {
        (void)error_set(&j->error, ERR_NO_MEMORY, "line %d: cannot allocate %zu bytes", j->line,
                        bytes);
        j->failed = true;
    } else if (!p) {
        (void)fail_limit(j, "bytes of values", j->arena.bytes_max);
    }
    return p;
}

bool jinja_charge(struct jinja_run *j, size_t n_steps)
{
    if (j->steps_left < n_steps) {
        j->steps_left = 0;
        if (!j->failed) {
            (void)error_set(&j->error, ERR_LIMIT, "line %d: rendering takes too many steps",
                            j->line);
            j->failed = true;
        }
        return false;
    }
    j->steps_left -= n_steps;
    return true;
}

bool jinja_enter(struct jinja_run *j)
{
    if (j->depth >= JINJA_RUN_DEPTH_MAX) {
        return fail_limit(j, "levels of nesting", JINJA_RUN_DEPTH_MAX);
    }
    j->depth++;
    return true;
}

void jinja_leave(struct jinja_run *j)
{
    assert(j->depth > 0);
    j->depth--;
}

/* ---- strings ---- */

static struct jinja_string *string_alloc(struct jinja_run *j)
{
    struct jinja_string *s = jinja_alloc(j, 1, sizeof *s);

    if (s) {
        s->n_chars = SIZE_MAX;
    }
    return s;
}

bool jinja_string_borrow(struct jinja_run *j, struct jinja_value *out, struct str text,
                         bool is_trusted)
{
    struct jinja_string *s = string_alloc(j);

    if (!s) {
        return false;
    }
    s->ptr = text.ptr ? text.ptr : "";
    s->len = text.len;
    s->is_trusted = is_trusted;
    *out = jinja_of_string(s);
    return true;
}

bool jinja_string_slice(struct jinja_run *j, struct jinja_value *out, const struct jinja_string *s,
                        size_t begin, size_t end)
{
    struct jinja_string *part = string_alloc(j);

    assert(begin <= end && end <= s->len);
    if (!part) {
        return false;
    }
    part->ptr = s->ptr + begin;
    part->len = end - begin;
    part->marks = s->marks ? s->marks + begin : NULL;
    part->is_trusted = s->is_trusted;
    part->is_markup = s->is_markup;
    *out = jinja_of_string(part);
    return true;
}

bool jinja_string_mark(const struct jinja_string *s, size_t byte_idx)
{
    return s->marks ? s->marks[byte_idx] != 0 : s->is_trusted;
}

bool jinja_string_all_trusted(const struct jinja_string *s)
{
    return s->marks ? memchr(s->marks, 0, s->len) == NULL : s->is_trusted;
}

static size_t count_chars(const char *p, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        count += ((unsigned char)p[i] & 0xc0u) != 0x80u;
    }
    return count;
}

size_t jinja_string_chars(struct jinja_string *s)
{
    if (s->n_chars == SIZE_MAX) {
        s->n_chars = count_chars(s->ptr, s->len);
    }
    return s->n_chars;
}

size_t jinja_string_offset(struct jinja_string *s, size_t i)
{
    size_t n = jinja_string_chars(s);
    size_t at = 0;

    if (n == s->len) {
        return i; /* ASCII */
    }
    if (i >= n) {
        return s->len;
    }
    if (i > n / 2) { /* from the nearer end */
        at = s->len;
        for (size_t left = n - i; left > 0; left--) {
            do {
                at--;
            } while (((unsigned char)s->ptr[at] & 0xc0u) == 0x80u);
        }
        return at;
    }
    for (; i > 0; i--) {
        do {
            at++;
        } while (at < s->len && ((unsigned char)s->ptr[at] & 0xc0u) == 0x80u);
    }
    return at;
}

void jinja_text_init(struct jinja_text *t, struct jinja_run *j)
{
    *t = (struct jinja_text){.j = j};
}

static bool text_grow(struct jinja_text *t, size_t extra)
{
    size_t need, cap;
    char *data;

    if (!size_add(&need, t->len, extra) || need > t->j->output_bytes_max) {
        return fail_limit(t->j, "bytes of text", t->j->output_bytes_max);
    }
    if (need <= t->cap) {
        return true;
    }
    cap = size_max(need, size_min(t->cap * 2, t->j->output_bytes_max));
    if (t->len > 0) {
        cap = size_max(cap, 64);
    }
    data = jinja_alloc(t->j, cap, 1);
    if (!data) {
        return false;
    }
    if (t->len > 0) {
        memcpy(data, t->data, t->len);
    }
    if (t->marks) {
        uint8_t *marks = jinja_alloc(t->j, cap, 1);
        if (!marks) {
            return false;
        }
        memcpy(marks, t->marks, t->len);
        t->marks = marks;
    }
    t->data = data;
    t->cap = cap;
    return jinja_charge(t->j, t->len / STEP_BYTES);
}

/* From here on each byte has its own mark. */
static bool text_begin_marks(struct jinja_text *t)
{
    t->marks = jinja_alloc(t->j, t->cap, 1);
    if (!t->marks) {
        return false;
    }
    memset(t->marks, t->is_trusted, t->len);
    return true;
}

/* marks NULL: all n bytes are is_trusted. */
static void text_put(struct jinja_text *t, const char *bytes, size_t n, const uint8_t *marks,
                     bool is_trusted)
{
    if (n == 0 || t->failed) {
        return;
    }
    if (!text_grow(t, n) || !jinja_charge(t->j, n / STEP_BYTES)) {
        t->failed = true;
        return;
    }
    if (t->len == 0 && !marks) {
        t->is_trusted = is_trusted;
        t->marks = NULL;
    } else if (!t->marks && (marks || is_trusted != t->is_trusted) && !text_begin_marks(t)) {
        t->failed = true;
        return;
    }
    memcpy(t->data + t->len, bytes, n);
    if (t->marks && marks) {
        memcpy(t->marks + t->len, marks, n);
    } else if (t->marks) {
        memset(t->marks + t->len, is_trusted, n);
    }
    t->len += n;
}

void jinja_text_put(struct jinja_text *t, const char *bytes, size_t n, bool is_trusted)
{
    text_put(t, bytes, n, NULL, is_trusted);
}

void jinja_text_put_cstr(struct jinja_text *t, const char *text, bool is_trusted)
{
    text_put(t, text, strlen(text), NULL, is_trusted);
}

void jinja_text_put_slice(struct jinja_text *t, const struct jinja_string *s, size_t begin,
                          size_t end)
{
    assert(begin <= end && end <= s->len);
    text_put(t, s->ptr + begin, end - begin, s->marks ? s->marks + begin : NULL, s->is_trusted);
}

void jinja_text_put_string(struct jinja_text *t, const struct jinja_string *s)
{
    jinja_text_put_slice(t, s, 0, s->len);
}

void jinja_text_put_char(struct jinja_text *t, uint32_t cp, bool is_trusted)
{
    char bytes[4];
    size_t n = utf8_encode(bytes, cp);

    text_put(t, bytes, n, NULL, is_trusted);
}

bool jinja_text_take(struct jinja_text *t, struct jinja_value *out)
{
    if (t->failed ||
        !jinja_string_borrow(t->j, out, (struct str){t->data, t->len}, t->is_trusted)) {
        return false;
    }
    out->as.string->marks = t->marks;
    return true;
}

static bool joins_in_room(const struct jinja_string *a)
{
    return a->room && a->room->len == a->len && !a->room->failed;
}

bool jinja_string_concat(struct jinja_run *j, struct jinja_value *out, struct jinja_string *a,
                         struct jinja_string *b)
{
    struct jinja_text *room = joins_in_room(a) ? a->room : NULL;
    struct jinja_string *s;

    if (b->len == 0 || a->len == 0) {
        *out = jinja_of_string(b->len == 0 ? a : b);
        return true;
    }
    if (!room) {
        room = jinja_alloc(j, 1, sizeof *room);
        if (!room) {
            return false;
        }
        jinja_text_init(room, j);
        if (!text_grow(room, a->len + b->len)) {
            return false;
        }
        jinja_text_put_string(room, a);
    }
    jinja_text_put_string(room, b);
    if (!jinja_text_take(room, out)) {
        return false;
    }
    s = out->as.string;
    s->room = s->len >= ROOM_MIN_BYTES ? room : NULL;
    if (a->n_chars != SIZE_MAX && b->n_chars != SIZE_MAX) {
        s->n_chars = a->n_chars + b->n_chars;
    }
    return true;
}

/* ---- lists ---- */

bool jinja_list_new(struct jinja_run *j, struct jinja_value *out, enum jinja_kind kind, size_t cap)
{
    struct jinja_list *l = jinja_alloc(j, 1, sizeof *l);
    struct jinja_items *store = jinja_alloc(j, 1, sizeof *store);

    if (!l || !store) {
        return false;
    }
    if (cap > 0) {
        store->data = jinja_alloc(j, cap, sizeof *store->data);
        if (!store->data) {
            return false;
        }
        store->cap = cap;
    }
    l->items = store->data;
    l->store = store;
    *out = (struct jinja_value){.kind = (uint8_t)kind, .as.list = l};
    return true;
}

static bool items_grow(struct jinja_run *j, struct jinja_items *store, size_t extra)
{
    size_t need, cap;
    struct jinja_value *data;

    if (!size_add(&need, store->used, extra)) {
        return fail_limit(j, "bytes of values", j->arena.bytes_max);
    }
    if (need <= store->cap) {
        return true;
    }
    cap = size_max(size_max(need, 4), store->cap * 2);
    data = jinja_alloc(j, cap, sizeof *data);
    if (!data) {
        return false;
    }
    if (store->used > 0) {
        memcpy(data, store->data, store->used * sizeof *data);
    }
    store->data = data;
    store->cap = cap;
    return jinja_charge(j, store->used / 16);
}

static bool owns_end(const struct jinja_list *l)
{
    return l->store && l->store->used == l->n && l->items == l->store->data;
}

bool jinja_list_push(struct jinja_run *j, struct jinja_list *l, struct jinja_value v)
{
    if (!owns_end(l)) {
        struct jinja_items *store = jinja_alloc(j, 1, sizeof *store);
        if (!store || !items_grow(j, store, l->n + 1)) {
            return false;
        }
        if (l->n > 0) {
            memcpy(store->data, l->items, l->n * sizeof *l->items);
        }
        store->used = l->n;
        l->store = store;
    }
    if (!items_grow(j, l->store, 1)) {
        return false;
    }
    l->items = l->store->data;
    l->items[l->n++] = v;
    l->store->used = l->n;
    return true;
}

bool jinja_list_concat(struct jinja_run *j, struct jinja_value *out, enum jinja_kind kind,
                       struct jinja_list *a, struct jinja_list *b)
{
    struct jinja_list *l;
    struct jinja_items *store = owns_end(a) ? a->store : NULL;
    size_t n_b = b->n; /* a and b may be the same list */

    if (!jinja_charge(j, b->n / 16 + (store ? 0 : a->n / 16))) {
        return false;
    }
    if (store) {
        l = jinja_alloc(j, 1, sizeof *l);
        if (!l || !items_grow(j, store, n_b)) {
            return false;
        }
        l->store = store;
    } else {
        if (!jinja_list_new(j, out, kind, a->n + n_b)) {
            return false;
        }
        l = out->as.list;
        store = l->store;
        if (a->n > 0) {
            memcpy(store->data, a->items, a->n * sizeof *a->items);
        }
        store->used = a->n;
    }
    if (n_b > 0) {
        memcpy(store->data + store->used, b->items, n_b * sizeof *b->items);
    }
    store->used += n_b;
    l->items = store->data;
    l->n = store->used;
    *out = (struct jinja_value){.kind = (uint8_t)kind, .as.list = l};
    return true;
}

/* ---- dicts ---- */

bool jinja_dict_new(struct jinja_run *j, struct jinja_value *out)
{
    struct jinja_dict *d = jinja_alloc(j, 1, sizeof *d);

    *out = (struct jinja_value){.kind = JINJA_DICT, .as.dict = d};
    return d != NULL;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, then mixed: keys come from requests, but a table of
                                         one request harms only that request's step budget */
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    }
    return h ^ (h >> 29);
}

static uint64_t hash_number(double d)
{
    uint64_t bits;

    if (d == 0.0) {
        d = 0.0; /* -0.0 equals 0.0 */
    }
    memcpy(&bits, &d, sizeof bits);
    return (bits ^ (bits >> 31)) * 0x9e3779b97f4a7c15u;
}

static bool hash_value(struct jinja_run *j, uint64_t *out, struct jinja_value v, unsigned depth)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_STRING:
    case JINJA_BIGINT:
        *out = hash_bytes(v.as.string->ptr, v.as.string->len);
        return jinja_charge(j, v.as.string->len / STEP_BYTES);
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT: /* 1, 1.0 and true are the same key */
        *out = hash_number(jinja_real(v));
        return true;
    case JINJA_NONE:
        *out = 0x6e6f6e65;
        return true;
    case JINJA_UNDEFINED:
        *out = 0x756e646566;
        return true;
    case JINJA_TUPLE: {
        uint64_t h = 0x7475706c65;
        if (depth > JINJA_RUN_DEPTH_MAX) {
            return fail_limit(j, "levels of nesting", JINJA_RUN_DEPTH_MAX);
        }
        for (size_t i = 0; i < v.as.list->n; i++) {
            uint64_t part;
            if (!jinja_charge(j, 1) || !hash_value(j, &part, v.as.list->items[i], depth + 1)) {
                return false;
            }
            h = (h ^ part) * 0x100000001b3u;
        }
        *out = h ^ (h >> 29);
        return true;
    }
    case JINJA_RANGE:
    case JINJA_ITERATOR:
    case JINJA_NAMESPACE:
    case JINJA_LOOP:
    case JINJA_FUNCTION:
    case JINJA_METHOD:
    case JINJA_MACRO:
        *out = v.kind; /* rare: found by comparing */
        return true;
    default:
        return jinja_fail(j, "unhashable type: '%s'", jinja_type_name(v));
    }
}

static bool dict_grow_table(struct jinja_run *j, struct jinja_dict *d)
{
    size_t n_slots = size_max(32, d->n_slots);
    uint32_t *slots;

    while (n_slots < d->n * 3) {
        n_slots *= 2;
    }
    slots = jinja_alloc(j, n_slots, sizeof *slots);
    if (!slots) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->entries[i].hash & (n_slots - 1);
        while (slots[at]) {
            at = (at + 1) & (n_slots - 1);
        }
        slots[at] = (uint32_t)(i + 1);
    }
    d->slots = slots;
    d->n_slots = n_slots;
    return true;
}

/* The entry of key, or NULL. *free_slot: where a new one goes (tables only). */
static bool dict_search(struct jinja_run *j, struct jinja_entry **out, const struct jinja_dict *d,
                        struct jinja_value key, uint64_t hash, size_t *free_slot)
{
    bool equal = false;

    *out = NULL;
    if (!d->slots) {
        for (size_t i = 0; i < d->n; i++) {
            struct jinja_entry *e = &d->entries[i];
            if (e->hash == hash) {
                if (!jinja_equal(j, &equal, e->key, key)) {
                    return false;
                }
                if (equal) {
                    *out = e;
                    return true;
                }
            }
        }
        return true;
    }
    for (size_t at = hash & (d->n_slots - 1);; at = (at + 1) & (d->n_slots - 1)) {
        struct jinja_entry *e;
        if (!d->slots[at]) {
            *free_slot = at;
            return true;
        }
        e = &d->entries[d->slots[at] - 1];
        if (!jinja_charge(j, 1)) {
            return false;
        }
        if (e->hash == hash) {
            if (!jinja_equal(j, &equal, e->key, key)) {
                return false;
            }
            if (equal) {
                *out = e;
                return true;
            }
        }
    }
}

static bool dict_reserve(struct jinja_run *j, struct jinja_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct jinja_entry *entries;

    if (d->n < d->cap) {
        return true;
    }
    if (cap >= UINT32_MAX / 4) {
        return fail_limit(j, "entries of a dict", UINT32_MAX / 4);
    }
    entries = jinja_alloc(j, cap, sizeof *entries);
    if (!entries) {
        return false;
    }
    if (d->n > 0) {
        memcpy(entries, d->entries, d->n * sizeof *entries);
    }
    d->entries = entries;
    d->cap = cap;
    return true;
}

bool jinja_dict_set(struct jinja_run *j, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value v)
{
    struct jinja_entry *e;
    uint64_t hash;
    size_t slot = 0;

    if (!hash_value(j, &hash, key, 0) || !dict_search(j, &e, d, key, hash, &slot)) {
        return false;
    }
    if (e) {
        e->value = v;
        return true;
    }
    if (!dict_reserve(j, d)) {
        return false;
    }
    d->entries[d->n++] = (struct jinja_entry){.key = key, .value = v, .hash = hash};
    if (d->slots && d->n * 2 <= d->n_slots) {
        d->slots[slot] = (uint32_t)d->n;
        return true;
    }
    return d->n <= DICT_LINEAR_MAX || dict_grow_table(j, d);
}

bool jinja_dict_find(struct jinja_run *j, struct jinja_value **found, const struct jinja_dict *d,
                     struct jinja_value key)
{
    struct jinja_entry *e;
    uint64_t hash;
    size_t slot;

    if (!hash_value(j, &hash, key, 0) || !dict_search(j, &e, d, key, hash, &slot)) {
        return false;
    }
    *found = e ? &e->value : NULL;
    return true;
}

static bool key_is(const struct jinja_entry *e, uint64_t hash, struct str key)
{
    return e->hash == hash && e->key.kind == JINJA_STRING &&
           str_eq(jinja_slice_of(e->key.as.string), key);
}

struct jinja_value *jinja_dict_get(const struct jinja_dict *d, struct str key)
{
    uint64_t hash = hash_bytes(key.ptr, key.len);

    if (!d->slots) {
        for (size_t i = 0; i < d->n; i++) {
            if (key_is(&d->entries[i], hash, key)) {
                return &d->entries[i].value;
            }
        }
        return NULL;
    }
    for (size_t at = hash & (d->n_slots - 1); d->slots[at]; at = (at + 1) & (d->n_slots - 1)) {
        struct jinja_entry *e = &d->entries[d->slots[at] - 1];
        if (key_is(e, hash, key)) {
            return &e->value;
        }
    }
    return NULL;
}

/* ---- from JSON ---- */

static bool number_from_json(struct jinja_run *j, struct jinja_value *out, struct json_object *v)
{
    int64_t i = json_object_get_int64(v);

    if (i != INT64_MAX && i != INT64_MIN) {
        *out = jinja_int(i);
        return true;
    }
    if (strcmp(json_number_text(v), i > 0 ? "9223372036854775807" : "-9223372036854775808") == 0) {
        *out = jinja_int(i);
        return true;
    }
    if (!jinja_string_borrow(j, out, str_of(json_number_text(v)), true)) {
        return false;
    }
    out->kind = JINJA_BIGINT;
    return true;
}

static bool list_from_json(struct jinja_run *j, struct jinja_value *out, struct json_object *v,
                           bool is_trusted)
{
    size_t n = json_object_array_length(v);

    if (!jinja_list_new(j, out, JINJA_LIST, n)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        struct jinja_value item;
        if (!jinja_from_json(j, &item, json_object_array_get_idx(v, i), is_trusted) ||
            !jinja_list_push(j, out->as.list, item)) {
            return false;
        }
    }
    return true;
}

static bool dict_from_json(struct jinja_run *j, struct jinja_value *out, struct json_object *v,
                           bool is_trusted)
{
    if (!jinja_dict_new(j, out)) {
        return false;
    }
    json_object_object_foreach(v, name, member)
    {
        struct jinja_value key, value;
        if (!jinja_string_borrow(j, &key, str_of(name), is_trusted) ||
            !jinja_from_json(j, &value, member, is_trusted) ||
            !jinja_dict_set(j, out->as.dict, key, value)) {
            return false;
        }
    }
    return true;
}

bool jinja_from_json(struct jinja_run *j, struct jinja_value *out, struct json_object *v,
                     bool is_trusted)
{
    bool ok = false;

    if (!jinja_enter(j)) {
        return false;
    }
    switch (json_object_get_type(v)) {
    case json_type_boolean:
        *out = jinja_bool(json_object_get_boolean(v));
        ok = true;
        break;
    case json_type_int:
        ok = number_from_json(j, out, v);
        break;
    case json_type_double:
        *out = jinja_float(json_object_get_double(v));
        ok = true;
        break;
    case json_type_string:
        ok = jinja_string_borrow(j, out, json_str(v), is_trusted);
        break;
    case json_type_array:
        ok = list_from_json(j, out, v, is_trusted);
        break;
    case json_type_object:
        ok = dict_from_json(j, out, v, is_trusted);
        break;
    default:
        *out = jinja_none();
        ok = true;
        break;
    }
    jinja_leave(j);
    return ok;
}

static bool copy_string(struct jinja_run *j, struct jinja_string *s)
{
    char *copy = jinja_alloc(j, s->len + 1, 1);

    if (copy && s->len > 0) {
        memcpy(copy, s->ptr, s->len);
    }
    s->ptr = copy ? copy : "";
    return copy != NULL;
}

bool jinja_deep_copy(struct jinja_run *j, struct jinja_value *v)
{
    bool ok = true;

    if (v->kind == JINJA_STRING || v->kind == JINJA_BIGINT) {
        return copy_string(j, v->as.string);
    }
    if (!jinja_enter(j)) {
        return false;
    }
    for (size_t i = 0; v->kind == JINJA_LIST && ok && i < v->as.list->n; i++) {
        ok = jinja_deep_copy(j, &v->as.list->items[i]);
    }
    for (size_t i = 0; v->kind == JINJA_DICT && ok && i < v->as.dict->n; i++) {
        ok = jinja_deep_copy(j, &v->as.dict->entries[i].key) &&
             jinja_deep_copy(j, &v->as.dict->entries[i].value);
    }
    jinja_leave(j);
    return ok;
}
