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

/* White space before an opening tag that the model writes itself; more than this is content. */
enum { REASONING_LEAD_BYTES_MAX = 64 };

enum reasoning_state {
    REASONING_MAYBE_OPEN, /* nothing but white space so far: <think> may come */
    REASONING_INSIDE,
    REASONING_AFTER_CLOSE, /* dropping newlines after the close tag */
    REASONING_CONTENT      /* everything from here on is content, tags too */
};

struct reasoning {
    enum reasoning_state state;
    struct buf held; /* not decided yet: white space and the beginning of a tag */
    size_t n_tag;    /* bytes of the tag at the end of held */
    bool seen_reasoning;
};

/* True when the prompt ends inside an open thinking block. Pass the template's own text only: what a
 * user writes about <think> opens nothing. */
bool reasoning_prompt_is_open(struct str prompt_text);

/* Where the answer to this prompt starts: INSIDE when a block is open, CONTENT when the prompt ends
 * with a closed block (thinking is switched off), else MAYBE_OPEN. */
enum reasoning_state reasoning_start_of_prompt(struct str prompt_text);

void reasoning_init(struct reasoning *r, bool starts_inside);
void reasoning_init_state(struct reasoning *r, enum reasoning_state start);
void reasoning_release(struct reasoning *r);
/* Appends to the two buffers what became certain. */
void reasoning_push(struct reasoning *r, struct str text, struct buf *reasoning_out,
                    struct buf *content_out);
void reasoning_finish(struct reasoning *r, struct buf *reasoning_out, struct buf *content_out);

#endif
