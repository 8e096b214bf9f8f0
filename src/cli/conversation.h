/* conversation.h - the messages of a chat, as the chat template wants them.
 *
 * Place: cli; used by cmd_chat. A failed allocation leaves the conversation as it was and gives false. */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include <stdbool.h>

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

struct conversation {
    struct json_object *messages; /* array; a system message, if any, is the first */
    bool has_system;
};

bool conversation_init(struct conversation *c);
void conversation_release(struct conversation *c);

bool conversation_clear(struct conversation *c); /* keeps the system message */
bool conversation_set_system(struct conversation *c, struct str text); /* empty: none; clears */
bool conversation_add_user(struct conversation *c, struct str text);
bool conversation_add_answer(struct conversation *c, struct str thinking, struct str content);
void conversation_drop_last(struct conversation *c);
size_t conversation_turns(const struct conversation *c); /* without the system message */

/* {"messages": [...]}, indented, as a new or replaced file. */
enum status conversation_save(const struct conversation *c, const char *path, struct error *err);

#endif
