/* tool_format.h - tool calls in generated text (the Qwen XML form), piece by piece.
 *
 * Place:  text. Syntax: <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ...
 *         </function> </tool_call>. One leading and one trailing newline of a value is dropped. A
 *         value is converted by the tool's JSON schema: string kept; integer, number, boolean, object,
 *         array parsed as JSON; "null" is null; what does not parse stays a string. A missing
 *         </parameter>, </function> or </tool_call> is tolerated. Unknown functions are reported as
 *         they are. Hand-written scanner, linear time; the arguments are always valid JSON. Text
 *         outside calls is content; white space between content and a call is dropped. */
#ifndef TEXT_TOOL_FORMAT_H
#define TEXT_TOOL_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

/* A name of a function or parameter; what is longer is no name, and the text is content. */
enum { TOOL_NAME_BYTES_MAX = 256 };

enum tool_event_kind {
    TOOL_EVENT_CONTENT,   /* text */
    TOOL_EVENT_CALL,      /* a call began: name in text, index set */
    TOOL_EVENT_ARGUMENTS, /* a fragment of the call's JSON arguments: text, index */
    TOOL_EVENT_CALL_END   /* the arguments are complete */
};

struct tool_event {
    enum tool_event_kind kind;
    size_t index;
    struct str text; /* borrowed until the callback returns */
};
typedef void tool_event_fn(void *ctx, const struct tool_event *e);

struct tool_parser;

/* tools: the request's array (borrowed; may be NULL). NULL when out of memory. */
struct tool_parser *tool_parser_new(struct json_object *tools, tool_event_fn *fn, void *ctx);
void tool_parser_free(struct tool_parser *p);
bool tool_parser_push(struct tool_parser *p, struct str text); /* false: out of memory */
bool tool_parser_finish(struct tool_parser *p);                /* closes an open call */
size_t tool_parser_n_calls(const struct tool_parser *p);

#endif
