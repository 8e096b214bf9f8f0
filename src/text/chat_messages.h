/* chat_messages.h - the messages of a request, checked and brought into the form templates expect.
 *
 * Place:  text; called by server/ and `spillway render` before chat_template_render. Fails with
 *         ERR_BAD_REQUEST; error.param and the text name the field: "messages[3].content".
 *
 * What changes, and nothing else:
 *   - roles are lower-cased; developer becomes system, function becomes tool
 *   - two or more leading system messages become one, their texts joined by an empty line
 *   - a content list of {"type":"text","text":...} parts becomes one string, the texts joined as they
 *     are; any other part type is refused ("this model reads text only")
 *   - content null or absent becomes "", but stays null beside tool_calls (templates look for that);
 *     a user message must have content
 *   - tool_calls[].function.arguments given as a string become the object they spell ("" is {});
 *     the older function_call becomes a tool_calls entry; an empty tool_calls list is dropped
 *   - reasoning_content null is dropped; `reasoning` is taken when reasoning_content is absent
 * All other members (name, tool_call_id, vendor fields) are kept. The text itself is never altered. */
#ifndef TEXT_CHAT_MESSAGES_H
#define TEXT_CHAT_MESSAGES_H

#include "base/json.h"
#include "base/status.h"

/* in: the request's "messages" value, NULL when absent; not changed. *out is a new array, to be
 * released with json_object_put(); it shares unchanged parts with `in`. Only leading system messages
 * are merged, so message i > 0 of *out was message i + (length of in - length of *out) of the
 * request: that difference is what render_options.index_shift wants. */
enum status chat_messages_normalise(struct json_object **out, struct json_object *in,
                                    struct error *err);

#endif
