/* reasoning.h - splits generated text into reasoning and content, piece by piece.
 *
 * Place:  text. Whether the answer starts inside reasoning follows from the rendered prompt's tail
 *         (an open <think> without its close), not from a parser's name. Any suffix that may begin a
 *         tag is held back, so a tag never leaks in parts. A tool call's start ends reasoning too.
 *         Newlines around the close tag are dropped: before it from the reasoning, after it from the
 *         content. Joined pieces equal the whole-text split for every way of cutting the input. */
#ifndef TEXT_REASONING_H
#define TEXT_REASONING_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/str.h"

enum reasoning_state { REASONING_MAYBE_OPEN, REASONING_INSIDE, REASONING_AFTER_CLOSE, REASONING_CONTENT };

struct reasoning {
    enum reasoning_state state;
    struct buf held; /* not decided yet */
    bool seen_reasoning;
};

/* True when the prompt ends inside an open thinking block. */
bool reasoning_prompt_is_open(struct str prompt_text);

void reasoning_init(struct reasoning *r, bool starts_inside);
void reasoning_release(struct reasoning *r);
/* Appends to the two buffers what became certain. */
void reasoning_push(struct reasoning *r, struct str text, struct buf *reasoning_out,
                    struct buf *content_out);
void reasoning_finish(struct reasoning *r, struct buf *reasoning_out, struct buf *content_out);

#endif
