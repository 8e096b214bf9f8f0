/* jinja_value.h - the values of a rendering: Python's, as far as templates meet them.
 *
 * Place:  text, inside the Jinja engine; shared by the evaluator, filters, tests and methods.
 * Memory: everything lives in the rendering's arena and is dropped with it; no value is freed alone.
 * Errors: functions that return bool give false after jinja_fail() or a passed limit; the caller
 *         returns false in turn, and jinja_render() reports what stands in the run.
 *
 * Strings carry marks: one byte per byte, 1 = trusted (the template's own text). A uniform string
 * has marks NULL and one flag. Strings and lists are never changed once made, except lists by pop()
 * and clear(); growing by "+" shares the memory of the left side when nothing was added behind it,
 * so that a loop which appends to a text or list takes linear time. */
#ifndef TEXT_JINJA_VALUE_H
#define TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

struct jinja_run;
struct jinja_text;
struct jinja_iter;
struct jinja_loop;
struct jinja_macro;
struct jinja_method;
struct jinja_builtin;

enum jinja_kind {
    JINJA_MISSING = 0, /* no value: an argument that was not given */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_BIGINT, /* an integer beyond 64 bits, kept as its digits; prints, compares, no arithmetic */
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_VIEW, /* dict.items(), keys(), values() */
    JINJA_RANGE,
    JINJA_ITERATOR, /* what map, select, reverse, ... give: can be walked once */
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_MACRO
};

enum jinja_view { JINJA_KEYS, JINJA_VALUES, JINJA_ITEMS };

/* Why a value is undefined, for the error when somebody uses it. */
enum jinja_why {
    JINJA_NO_NAME,      /* 'x' is undefined */
    JINJA_NO_ATTRIBUTE, /* 'dict object' has no attribute 'x' */
    JINJA_NO_ELEMENT,   /* list object has no element */
    JINJA_NO_PARAMETER, /* parameter 'x' was not provided */
    JINJA_UNSAFE,       /* access to attribute 'x' of 'dict' object is unsafe */
    JINJA_EMPTY         /* no item there, or no else branch */
};

struct jinja_string {
    const char *ptr; /* valid UTF-8, not NUL-terminated */
    size_t len;
    const uint8_t *marks;    /* NULL: all bytes are as is_trusted says */
    struct jinja_text *room; /* the growing text that this is the start of, or NULL */
    size_t n_chars;          /* code points; SIZE_MAX: not counted yet */
    bool is_trusted;
    bool is_markup; /* made by |safe or |escape: "+" escapes what is joined to it */
};

struct jinja_value {
    uint8_t kind;   /* enum jinja_kind */
    uint8_t detail; /* VIEW: enum jinja_view; UNDEFINED: enum jinja_why */
    uint8_t owner;  /* UNDEFINED: kind of the object that was asked */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct jinja_string *string; /* STRING, BIGINT; UNDEFINED: the name, or NULL */
        struct jinja_list *list;     /* LIST, TUPLE */
        struct jinja_dict *dict;     /* DICT, VIEW, NAMESPACE */
        struct jinja_range *range;
        struct jinja_iter *iter;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        struct jinja_method *method;
        const struct jinja_builtin *function;
    } as;
};

struct jinja_items { /* growing memory behind lists that share a start */
    struct jinja_value *data;
    size_t used, cap;
};

struct jinja_list {
    struct jinja_value *items;
    size_t n;
    struct jinja_items *store; /* NULL: items stand alone */
    bool is_group;             /* a tuple of |groupby: .grouper and .list */
};

struct jinja_entry {
    struct jinja_value key, value;
    uint64_t hash;
};

struct jinja_dict { /* keeps the order of insertion */
    struct jinja_entry *entries;
    size_t n, cap;
    uint32_t *slots; /* hash table of entry index + 1, NULL while n is small */
    size_t n_slots;  /* power of two */
};

struct jinja_range {
    int64_t start, stop, step;
    size_t n;
};

/* A text under construction. A failure is remembered in the run: check jinja_text_take(). */
struct jinja_text {
    struct jinja_run *j;
    char *data;
    uint8_t *marks; /* NULL while all of it has one mark */
    size_t len, cap;
    bool is_trusted; /* of all of it, while marks is NULL */
    bool failed;
};

/* Memory and failures of a rendering. Zeroed memory, or NULL after recording the failure. */
void *jinja_alloc(struct jinja_run *j, size_t n, size_t each);
bool jinja_fail(struct jinja_run *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool jinja_charge(struct jinja_run *j, size_t n_steps); /* false: the step limit is passed */
bool jinja_enter(struct jinja_run *j);                  /* one level deeper; false: too deep */
void jinja_leave(struct jinja_run *j);

/* Making values. */
static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .as.boolean = b};
}
static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.kind = JINJA_INT, .as.integer = i};
}
static inline struct jinja_value jinja_float(double d)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .as.real = d};
}
static inline struct jinja_value jinja_of_string(struct jinja_string *s)
{
    return (struct jinja_value){.kind = JINJA_STRING, .as.string = s};
}
static inline struct jinja_value jinja_undefined(enum jinja_why why, uint8_t owner,
                                                 struct jinja_string *name)
{
    return (struct jinja_value){
        .kind = JINJA_UNDEFINED, .detail = (uint8_t)why, .owner = owner, .as.string = name};
}

/* A string that borrows text for as long as the run lives. */
bool jinja_string_borrow(struct jinja_run *j, struct jinja_value *out, struct str text,
                         bool is_trusted);
/* Bytes [begin, end) of s, sharing memory. Both on character borders. */
bool jinja_string_slice(struct jinja_run *j, struct jinja_value *out, const struct jinja_string *s,
                        size_t begin, size_t end);
bool jinja_string_concat(struct jinja_run *j, struct jinja_value *out, struct jinja_string *a,
                         struct jinja_string *b);
size_t jinja_string_chars(struct jinja_string *s);
/* The byte offset of character i (i <= the count). */
size_t jinja_string_offset(struct jinja_string *s, size_t i);
bool jinja_string_mark(const struct jinja_string *s, size_t byte_idx);
bool jinja_string_all_trusted(const struct jinja_string *s);
static inline struct str jinja_slice_of(const struct jinja_string *s)
{
    return (struct str){s->ptr, s->len};
}

void jinja_text_init(struct jinja_text *t, struct jinja_run *j);
void jinja_text_put(struct jinja_text *t, const char *bytes, size_t n, bool is_trusted);
void jinja_text_put_cstr(struct jinja_text *t, const char *text, bool is_trusted);
void jinja_text_put_slice(struct jinja_text *t, const struct jinja_string *s, size_t begin,
                          size_t end);
void jinja_text_put_string(struct jinja_text *t, const struct jinja_string *s);
void jinja_text_put_char(struct jinja_text *t, uint32_t cp, bool is_trusted);
bool jinja_text_take(struct jinja_text *t, struct jinja_value *out);

bool jinja_list_new(struct jinja_run *j, struct jinja_value *out, enum jinja_kind kind, size_t cap);
bool jinja_list_push(struct jinja_run *j, struct jinja_list *l, struct jinja_value v);
bool jinja_list_concat(struct jinja_run *j, struct jinja_value *out, enum jinja_kind kind,
                       struct jinja_list *a, struct jinja_list *b);

bool jinja_dict_new(struct jinja_run *j, struct jinja_value *out);
/* False: the key cannot be hashed, or memory ran out. */
bool jinja_dict_set(struct jinja_run *j, struct jinja_dict *d, struct jinja_value key,
                    struct jinja_value v);
/* *found NULL: not there. */
bool jinja_dict_find(struct jinja_run *j, struct jinja_value **found, const struct jinja_dict *d,
                     struct jinja_value key);
/* By text, for attributes; never fails. */
struct jinja_value *jinja_dict_get(const struct jinja_dict *d, struct str key);

/* All strings of v get the given mark. */
bool jinja_from_json(struct jinja_run *j, struct jinja_value *out, struct json_object *v,
                     bool is_trusted);

/* Strings of *v, borrowed from memory that goes away, get copies in the run. */
bool jinja_deep_copy(struct jinja_run *j, struct jinja_value *v);

/* Questions about values. */
const char *jinja_type_name(struct jinja_value v); /* Python's: "str", "NoneType" */
bool jinja_truth(struct jinja_value v);
bool jinja_is_number(struct jinja_value v);  /* int, float or bool; not BIGINT */
bool jinja_is_integer(struct jinja_value v); /* INT or BOOL: jinja_integer() gives it */
int64_t jinja_integer(struct jinja_value v);
double jinja_real(struct jinja_value v);
bool jinja_is_string(struct jinja_value v, const char *text);
bool jinja_equal(struct jinja_run *j, bool *out, struct jinja_value a, struct jinja_value b);
bool jinja_same(struct jinja_value a, struct jinja_value b); /* Python's `is` */
/* *out -1, 0, 1, or JINJA_UNORDERED for NaN. False: no order between them (fails), or too deep. */
enum { JINJA_UNORDERED = 2 };
bool jinja_compare(struct jinja_run *j, int *out, struct jinja_value a, struct jinja_value b,
                   const char *op);
/* order[0..n) becomes the stable sorted order of keys. */
bool jinja_sort_order(struct jinja_run *j, size_t *order, const struct jinja_value *keys, size_t n,
                      bool reverse);
bool jinja_contains(struct jinja_run *j, bool *out, struct jinja_value container,
                    struct jinja_value item);
/* len(); false and a failure when there is none. */
bool jinja_length(struct jinja_run *j, size_t *out, struct jinja_value v);
/* Record the error for using an undefined value. Always false. */
bool jinja_fail_undefined(struct jinja_run *j, struct jinja_value v);

/* Printing (jinja_print.c). */
bool jinja_print(struct jinja_text *t, struct jinja_value v); /* str() */
bool jinja_repr(struct jinja_text *t, struct jinja_value v);
bool jinja_to_string(struct jinja_run *j, struct jinja_value *out, struct jinja_value v);
/* The same, but a Markup string stays one. */
bool jinja_soft_string(struct jinja_run *j, struct jinja_value *out, struct jinja_value v);

struct jinja_json_style {
    bool ensure_ascii, sort_keys;
    bool has_indent;
    struct jinja_string *indent;                         /* one level */
    struct jinja_string *item_separator, *key_separator; /* NULL: Python's defaults */
};
bool jinja_tojson(struct jinja_text *t, struct jinja_value v, const struct jinja_json_style *style);

#endif
