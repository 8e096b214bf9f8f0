/* tool_format.c - the scanner for tool calls. See tool_format.h.
 *
 * A state machine over bytes:
 *
 *     CONTENT --<tool_call>--> OPENED --<function=--> NAME -->--> BODY --</function>--> AFTER
 *        ^                        |                     |         |  ^                    |
 *        +------ no call ---------+---------------------+         |  +--</parameter>--+   |
 *        +---------------------- </tool_call> --------------------|--------------------|---+
 *                                                   <parameter= KEY -->--> VALUE ------+
 *
 * '<' stands only at the start of a tag, so a mismatch needs no more memory than the tag's beginning
 * (`tag`), and each byte is looked at a bounded number of times. Until the function's name is
 * complete it may still turn out to be plain text; so far the raw bytes are kept in `held`.
 *
 * Values of string parameters are passed on while they come in (a program to be written to a file may
 * be long); others when they are complete, since only then it is known whether they parse. */
#include "text/tool_format.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "text/tool_value.h"

enum scan_state { CONTENT, OPENED, NAME, BODY, KEY, VALUE, AFTER };

enum tag {
    TAG_NONE,
    TAG_CALL,
    TAG_CALL_END,
    TAG_FUNCTION,
    TAG_FUNCTION_END,
    TAG_PARAMETER,
    TAG_PARAMETER_END,
    TAG_COUNT
};

enum { TAG_BYTES_MAX = 12 };

static const struct str tags[TAG_COUNT] = {
    [TAG_CALL] = {"<tool_call>", 11},      [TAG_CALL_END] = {"</tool_call>", 12},
    [TAG_FUNCTION] = {"<function=", 10},   [TAG_FUNCTION_END] = {"</function>", 11},
    [TAG_PARAMETER] = {"<parameter=", 11}, [TAG_PARAMETER_END] = {"</parameter>", 12},
};

/* The tags that mean something in each state, as bits. */
#define BIT(t) (1u << (t))
static const unsigned tags_of_state[] = {
    [CONTENT] = BIT(TAG_CALL),
    [OPENED] = BIT(TAG_FUNCTION),
    [NAME] = 0,
    [BODY] = BIT(TAG_PARAMETER) | BIT(TAG_FUNCTION_END) | BIT(TAG_CALL_END) | BIT(TAG_CALL) |
             BIT(TAG_FUNCTION),
    [KEY] = 0,
    [VALUE] =
        BIT(TAG_PARAMETER_END) | BIT(TAG_PARAMETER) | BIT(TAG_FUNCTION_END) | BIT(TAG_CALL_END),
    [AFTER] = BIT(TAG_CALL_END),
};

struct tool_parser {
    struct json_object *tools;
    tool_event_fn *fn;
    void *ctx;
    enum scan_state state;
    char tag[TAG_BYTES_MAX]; /* a tag that has begun */
    size_t n_tag;
    struct buf
        held; /* CONTENT: white space that may stand before a call; OPENED, NAME: the raw text */
    struct buf name;                /* NAME: function; KEY: parameter */
    struct buf content;             /* not reported yet */
    struct buf args;                /* not reported yet */
    struct buf value;               /* VALUE: not written to args yet */
    struct json_object *properties; /* of the current function, or NULL */
    size_t n_calls;
    bool drops_space; /* CONTENT after a call: white space belongs to the call */
    bool has_args;    /* the opening brace was written */
    enum tool_value_kind kind;
    bool at_value_start, has_newline; /* the newline that may be the last one of the value */
    bool is_quote_open;
};

struct tool_parser *tool_parser_new(struct json_object *tools, tool_event_fn *fn, void *ctx)
{
    struct tool_parser *p = calloc(1, sizeof *p);

    if (p) {
        p->tools = tools;
        p->fn = fn;
        p->ctx = ctx;
        p->state = CONTENT;
    }
    return p;
}

void tool_parser_free(struct tool_parser *p)
{
    if (!p) {
        return;
    }
    buf_release(&p->held);
    buf_release(&p->name);
    buf_release(&p->content);
    buf_release(&p->args);
    buf_release(&p->value);
    free(p);
}

size_t tool_parser_n_calls(const struct tool_parser *p)
{
    return p->n_calls;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_ok(const struct tool_parser *p)
{
    return buf_ok(&p->held) && buf_ok(&p->name) && buf_ok(&p->content) && buf_ok(&p->args) &&
           buf_ok(&p->value);
}

/* --- events ------------------------------------------------------------------------------------ */

static void report(struct tool_parser *p, enum tool_event_kind kind, struct buf *text)
{
    struct tool_event e = {.kind = kind, .index = p->n_calls > 0 ? p->n_calls - 1 : 0};

    if (text) {
        e.text = (struct str){buf_cstr(text), text->len};
    }
    if (is_ok(p)) {
        p->fn(p->ctx, &e);
    }
}

static void report_content(struct tool_parser *p)
{
    if (p->content.len > 0) {
        report(p, TOOL_EVENT_CONTENT, &p->content);
        p->content.len = 0;
    }
}

static void report_arguments(struct tool_parser *p)
{
    if (p->args.len > 0) {
        report(p, TOOL_EVENT_ARGUMENTS, &p->args);
        p->args.len = 0;
    }
}

/* --- values ------------------------------------------------------------------------------------ */

/* Append text to the open JSON string in args, without quotes around it. */
static void write_inside_quotes(struct tool_parser *p, size_t n)
{
    size_t start = p->args.len;

    json_write_string(&p->args, p->value.data, n);
    if (buf_ok(&p->args)) {
        assert(p->args.len >= start + 2);
        memmove(p->args.data + start, p->args.data + start + 1, p->args.len - start - 2);
        p->args.len -= 2;
    }
}

/* Pass on what is certain of a string value. "null" is held back: it may be all of the value. */
static void flush_string(struct tool_parser *p)
{
    static const struct str null_word = {"null", 4};
    struct str so_far = {p->value.data, p->value.len};
    size_t n;

    if (p->kind != TOOL_VALUE_STRING || so_far.len == 0) {
        return;
    }
    if (!p->is_quote_open && str_starts(null_word, so_far)) {
        return;
    }
    n = so_far.len - utf8_incomplete_tail(so_far.ptr, so_far.len);
    if (n == 0) {
        return;
    }
    if (!p->is_quote_open) {
        buf_append_char(&p->args, '"');
        p->is_quote_open = true;
    }
    write_inside_quotes(p, n);
    buf_consume(&p->value, n);
}

static void begin_value(struct tool_parser *p)
{
    buf_append_char(&p->args, p->has_args ? ',' : '{');
    p->has_args = true;
    json_write_string(&p->args, p->name.data, p->name.len);
    buf_append_char(&p->args, ':');
    p->kind = tool_value_kind_of(p->properties, buf_cstr(&p->name));
    p->value.len = 0;
    p->at_value_start = true;
    p->has_newline = false;
    p->is_quote_open = false;
    p->state = VALUE;
}

static void value_byte(struct tool_parser *p, char c)
{
    if (p->at_value_start) {
        p->at_value_start = false;
        if (c == '\n') {
            return;
        }
    }
    if (p->has_newline) {
        buf_append_char(&p->value, '\n');
    }
    p->has_newline = c == '\n';
    if (!p->has_newline) {
        buf_append_char(&p->value, c);
    }
}

static void end_value(struct tool_parser *p)
{
    struct str text = {buf_cstr(&p->value), p->value.len};

    if (p->is_quote_open) {
        write_inside_quotes(p, text.len);
        buf_append_char(&p->args, '"');
    } else {
        tool_value_write(&p->args, p->kind, text);
    }
    p->value.len = 0;
    p->is_quote_open = false;
    p->state = BODY;
}

/* --- calls ------------------------------------------------------------------------------------- */

static void begin_call(struct tool_parser *p)
{
    struct str name = {buf_cstr(&p->name), p->name.len};

    report_content(p);
    p->held.len = 0;
    p->properties = tool_properties_of(p->tools, name);
    p->has_args = false;
    p->n_calls++;
    report(p, TOOL_EVENT_CALL, &p->name);
    p->state = BODY;
}

static void end_call(struct tool_parser *p)
{
    buf_append_str(&p->args, p->has_args ? "}" : "{}");
    report_arguments(p);
    report(p, TOOL_EVENT_CALL_END, NULL);
    p->drops_space = true;
    p->state = CONTENT;
}

static void release_held(struct tool_parser *p)
{
    buf_append(&p->content, p->held.data, p->held.len);
    p->held.len = 0;
}

static void expect_function(struct tool_parser *p, enum tag begun)
{
    buf_append(&p->held, tags[begun].ptr, tags[begun].len);
    p->name.len = 0;
    p->state = begun == TAG_CALL ? OPENED : NAME;
}

static void on_tag(struct tool_parser *p, enum tag tag)
{
    if (p->state == VALUE) {
        end_value(p);
        if (tag == TAG_PARAMETER_END) {
            return;
        }
    }
    switch (tag) {
    case TAG_PARAMETER:
        p->name.len = 0;
        p->state = KEY;
        break;
    case TAG_CALL:
    case TAG_FUNCTION:
        if (p->state == BODY) { /* the end of the last call is missing */
            end_call(p);
        }
        expect_function(p, tag);
        break;
    case TAG_FUNCTION_END:
        end_call(p);
        p->state = AFTER;
        break;
    case TAG_CALL_END:
        if (p->state == BODY) {
            end_call(p);
        }
        p->state = CONTENT;
        break;
    default:
        break;
    }
}

/* --- bytes ------------------------------------------------------------------------------------- */

/* Does the begun tag go on with c? *complete names the tag when c was its last byte. */
static bool take_tag_byte(struct tool_parser *p, char c, enum tag *complete)
{
    *complete = TAG_NONE;
    for (enum tag t = TAG_CALL; t < TAG_COUNT; t++) {
        if ((tags_of_state[p->state] & BIT(t)) && p->n_tag < tags[t].len &&
            tags[t].ptr[p->n_tag] == c && memcmp(tags[t].ptr, p->tag, p->n_tag) == 0) {
            p->tag[p->n_tag++] = c;
            if (p->n_tag == tags[t].len) {
                *complete = t;
                p->n_tag = 0;
            }
            return true;
        }
    }
    return false;
}

static void plain_byte(struct tool_parser *p, char c);

static void feed(struct tool_parser *p, char c);

/* The tag that had begun is none: its bytes are plain. The first may change the state (what looked
 * like a call is text), and there the others may belong to a tag again; so they are fed anew. */
static void give_up_tag(struct tool_parser *p)
{
    char begun[TAG_BYTES_MAX];
    size_t n_begun = p->n_tag;

    memcpy(begun, p->tag, n_begun);
    p->n_tag = 0;
    plain_byte(p, begun[0]);
    for (size_t i = 1; i < n_begun; i++) {
        feed(p, begun[i]);
    }
}

static void feed(struct tool_parser *p, char c)
{
    enum tag complete;

    if ((c == '<' || p->n_tag > 0) && take_tag_byte(p, c, &complete)) {
        if (complete != TAG_NONE) {
            on_tag(p, complete);
        }
    } else if (p->n_tag > 0) {
        give_up_tag(p);
        feed(p, c);
    } else {
        plain_byte(p, c);
    }
}

/* What looked like a call is text. c is the byte that showed it. */
static void not_a_call(struct tool_parser *p, char c)
{
    release_held(p);
    p->drops_space = false;
    p->state = CONTENT;
    feed(p, c);
}

static void content_byte(struct tool_parser *p, char c)
{
    if (!is_space(c)) {
        release_held(p);
        buf_append_char(&p->content, c);
        p->drops_space = false;
    } else if (!p->drops_space) {
        buf_append_char(&p->held, c);
    }
}

static void name_byte(struct tool_parser *p, char c)
{
    bool is_full = p->name.len >= TOOL_NAME_BYTES_MAX;

    if (c == '>' && p->name.len > 0) {
        if (p->state == NAME) {
            begin_call(p);
        } else {
            begin_value(p);
        }
    } else if (c == '>' || c == '<' || c == '\n' || is_full) {
        if (p->state == NAME) {
            not_a_call(p, c);
        } else { /* no name of a parameter: dropped */
            p->state = BODY;
            feed(p, c);
        }
    } else {
        buf_append_char(&p->name, c);
        if (p->state == NAME) {
            buf_append_char(&p->held, c);
        }
    }
}

/* A byte that belongs to no tag. */
static void plain_byte(struct tool_parser *p, char c)
{
    switch (p->state) {
    case CONTENT:
        content_byte(p, c);
        break;
    case OPENED:
        if (is_space(c)) {
            buf_append_char(&p->held, c);
        } else {
            not_a_call(p, c);
        }
        break;
    case NAME:
    case KEY:
        name_byte(p, c);
        break;
    case BODY: /* nothing may stand between parameters */
        break;
    case VALUE:
        value_byte(p, c);
        break;
    case AFTER:
        if (!is_space(c)) { /* </tool_call> is missing */
            p->state = CONTENT;
            feed(p, c);
        }
        break;
    }
}

bool tool_parser_push(struct tool_parser *p, struct str text)
{
    for (size_t i = 0; i < text.len; i++) {
        feed(p, text.ptr[i]);
    }
    flush_string(p);
    report_content(p);
    report_arguments(p);
    return is_ok(p);
}

bool tool_parser_finish(struct tool_parser *p)
{
    while (p->n_tag > 0) {
        give_up_tag(p);
    }
    if (p->state == VALUE) {
        end_value(p);
    }
    if (p->state == BODY || p->state == KEY) {
        end_call(p);
    }
    release_held(p);
    report_content(p);
    p->state = CONTENT;
    return is_ok(p);
}
