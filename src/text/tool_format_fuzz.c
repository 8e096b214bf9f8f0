/* tool_format_fuzz.c - model output through the thinking splitter and the tool scanner.
 *
 * Checks: cut at any byte gives what the whole gives; arguments are JSON objects. The first byte
 * chooses where the cut is and whether the text starts inside thinking. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/reasoning.h"
#include "text/tool_format.h"

struct record {
    struct buf text, args;
};

static void on_event(void *ctx, const struct tool_event *e)
{
    struct record *r = ctx;
    struct json_object *v = NULL;

    buf_append(&r->text, e->text.ptr, e->text.len);
    switch (e->kind) {
    case TOOL_EVENT_ARGUMENTS:
        buf_append(&r->args, e->text.ptr, e->text.len);
        break;
    case TOOL_EVENT_CALL_END:
        if (json_parse(&v, r->args.data, r->args.len, NULL) != OK ||
            !json_object_is_type(v, json_type_object)) {
            abort();
        }
        json_object_put(v);
        buf_clear(&r->args);
        buf_append_char(&r->text, '\x1e');
        break;
    case TOOL_EVENT_CALL:
    case TOOL_EVENT_CONTENT:
        break;
    }
}

static void run(struct buf *out, struct str text, size_t cut, bool starts_inside,
                struct json_object *tools)
{
    struct record r = {0};
    struct reasoning split;
    struct buf thought, content;
    struct tool_parser *p = tool_parser_new(tools, on_event, &r);

    if (!p) {
        abort();
    }
    buf_init(&thought);
    buf_init(&content);
    reasoning_init(&split, starts_inside);
    reasoning_push(&split, (struct str){text.ptr, cut}, &thought, &content);
    tool_parser_push(p, (struct str){buf_cstr(&content), content.len});
    buf_clear(&content);
    reasoning_push(&split, (struct str){text.ptr + cut, text.len - cut}, &thought, &content);
    reasoning_finish(&split, &thought, &content);
    tool_parser_push(p, (struct str){buf_cstr(&content), content.len});
    tool_parser_finish(p);
    buf_append(out, thought.data, thought.len);
    buf_append_char(out, '\x1f');
    buf_append(out, r.text.data, r.text.len);
    tool_parser_free(p);
    reasoning_release(&split);
    buf_release(&thought);
    buf_release(&content);
    buf_release(&r.text);
    buf_release(&r.args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char tools_text[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"}"
        ","
        "\"i\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"},\"b\":{\"type\":\"boolean\"},"
        "\"r\":{\"$ref\":\"x\"}}}}}]";
    struct json_object *tools = NULL;
    struct str text;
    struct buf whole, cut;
    size_t at;

    if (size < 2) {
        return 0;
    }
    text = (struct str){(const char *)data + 1, --size};
    at = ((size_t)data[0] * size) / 256;
    buf_init(&whole);
    buf_init(&cut);
    if (json_parse(&tools, tools_text, sizeof tools_text - 1, NULL) != OK) {
        abort();
    }
    run(&whole, text, size, data[0] % 2 == 0, tools);
    run(&cut, text, at, data[0] % 2 == 0, tools);
    if (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0) {
        abort();
    }
    json_object_put(tools);
    buf_release(&whole);
    buf_release(&cut);
    return 0;
}
