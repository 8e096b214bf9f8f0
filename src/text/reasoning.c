/* reasoning.c - the thinking splitter. See reasoning.h.
 *
 * One automaton over bytes. '<' occurs only at the start of the tags, so after a mismatch the only
 * byte that can start a new tag is the one that did not fit: no backtracking, linear time. What is
 * held is at most a run of newlines and the beginning of a tag. */
#include "text/reasoning.h"

#include <assert.h>
#include <string.h>

static const struct str open_tag = {"<think>", 7};
static const struct str close_tag = {"</think>", 8};
static const struct str call_tag = {"<tool_call>", 11};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Offset past the last occurrence of tag, 0 when there is none. */
static size_t end_of_last(struct str text, struct str tag)
{
    for (size_t at = text.len; at >= tag.len; at--) {
        if (memcmp(text.ptr + at - tag.len, tag.ptr, tag.len) == 0) {
            return at;
        }
    }
    return 0;
}

bool reasoning_prompt_is_open(struct str prompt_text)
{
    return end_of_last(prompt_text, open_tag) > end_of_last(prompt_text, close_tag);
}

enum reasoning_state reasoning_start_of_prompt(struct str prompt_text)
{
    size_t end = end_of_last(prompt_text, close_tag);

    if (end_of_last(prompt_text, open_tag) > end) {
        return REASONING_INSIDE;
    }
    if (end == 0) {
        return REASONING_MAYBE_OPEN;
    }
    while (end < prompt_text.len && is_space(prompt_text.ptr[end])) {
        end++;
    }
    return end == prompt_text.len ? REASONING_CONTENT : REASONING_MAYBE_OPEN;
}

void reasoning_init(struct reasoning *r, bool starts_inside)
{
    reasoning_init_state(r, starts_inside ? REASONING_INSIDE : REASONING_MAYBE_OPEN);
}

void reasoning_init_state(struct reasoning *r, enum reasoning_state start)
{
    memset(r, 0, sizeof *r);
    r->state = start;
    buf_init(&r->held);
}

void reasoning_release(struct reasoning *r)
{
    buf_release(&r->held);
}

static void hold(struct reasoning *r, char c)
{
    buf_append_char(&r->held, c);
}

/* Does the tag begun in held, with c after it, still begin `tag`? */
static bool tag_goes_on(const struct reasoning *r, char c, struct str tag)
{
    if (r->n_tag >= tag.len || tag.ptr[r->n_tag] != c) {
        return false;
    }
    return r->n_tag == 0 || memcmp(r->held.data + r->held.len - r->n_tag, tag.ptr, r->n_tag) == 0;
}

static void drop_held(struct reasoning *r)
{
    buf_clear(&r->held);
    r->n_tag = 0;
}

static void release_held(struct reasoning *r, struct buf *out)
{
    buf_append(out, r->held.data, r->held.len);
    if (r->held.failed) {
        out->failed = true;
    }
    drop_held(r);
}

static void step_maybe_open(struct reasoning *r, char c, struct buf *content_out)
{
    if (tag_goes_on(r, c, open_tag)) {
        hold(r, c);
        if (++r->n_tag == open_tag.len) {
            drop_held(r);
            r->state = REASONING_INSIDE;
        }
        return;
    }
    if (r->n_tag == 0 && is_space(c) && r->held.len < REASONING_LEAD_BYTES_MAX) {
        hold(r, c);
        return;
    }
    release_held(r, content_out);
    buf_append_char(content_out, c);
    r->state = REASONING_CONTENT;
}

static void step_inside(struct reasoning *r, char c, struct buf *reasoning_out,
                        struct buf *content_out)
{
    bool is_close = tag_goes_on(r, c, close_tag), is_call = tag_goes_on(r, c, call_tag);

    if (is_close || is_call) {
        hold(r, c);
        r->n_tag++;
        if (is_close && r->n_tag == close_tag.len) {
            drop_held(r); /* with the newlines before it */
            r->state = REASONING_AFTER_CLOSE;
        } else if (is_call && r->n_tag == call_tag.len) {
            drop_held(r);
            buf_append(content_out, call_tag.ptr, call_tag.len);
            r->state = REASONING_CONTENT;
        }
        return;
    }
    if (r->n_tag > 0) { /* no tag after all; c may start one, or a run of newlines */
        release_held(r, reasoning_out);
        r->seen_reasoning = true;
        step_inside(r, c, reasoning_out, content_out);
        return;
    }
    if (c == '\n') {
        hold(r, c);
        return;
    }
    release_held(r, reasoning_out);
    buf_append_char(reasoning_out, c);
    r->seen_reasoning = true;
}

/* The longest run at text that is plain reasoning: no newline, no '<'. */
static size_t plain_run(struct str text)
{
    size_t n = 0;

    while (n < text.len && text.ptr[n] != '\n' && text.ptr[n] != '<') {
        n++;
    }
    return n;
}

void reasoning_push(struct reasoning *r, struct str text, struct buf *reasoning_out,
                    struct buf *content_out)
{
    size_t i = 0, n_plain;

    while (i < text.len) {
        struct str rest = {text.ptr + i, text.len - i};
        switch (r->state) {
        case REASONING_MAYBE_OPEN:
            step_maybe_open(r, text.ptr[i++], content_out);
            break;
        case REASONING_INSIDE:
            n_plain = r->held.len == 0 ? plain_run(rest) : 0;
            if (n_plain > 0) {
                buf_append(reasoning_out, rest.ptr, n_plain);
                r->seen_reasoning = true;
                i += n_plain;
            } else {
                step_inside(r, text.ptr[i++], reasoning_out, content_out);
            }
            break;
        case REASONING_AFTER_CLOSE:
            if (text.ptr[i] == '\n') {
                i++;
            } else {
                r->state = REASONING_CONTENT;
            }
            break;
        case REASONING_CONTENT:
            buf_append(content_out, rest.ptr, rest.len);
            i = text.len;
            break;
        }
    }
}

void reasoning_finish(struct reasoning *r, struct buf *reasoning_out, struct buf *content_out)
{
    assert(r->state == REASONING_MAYBE_OPEN || r->state == REASONING_INSIDE || r->held.len == 0);
    if (r->held.len > 0) {
        release_held(r, r->state == REASONING_INSIDE ? reasoning_out : content_out);
    }
}
