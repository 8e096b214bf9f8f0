/* detok.h - token ids to text, piece by piece.
 *
 * Place: text. An incomplete character at the end of what came so far is held back until it is
 *        complete; bytes that can never be completed become one U+FFFD per maximal bad part. Every
 *        piece is valid UTF-8, and the pieces joined equal the whole decoded at once. */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

#include "base/buf.h"
#include "text/tokenizer.h"

struct detok {
    const struct tokenizer *tokenizer;
    bool skip_special;
    char tail[8]; /* bytes of an incomplete character */
    size_t n_tail;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_push(struct detok *d, int32_t id, struct buf *out); /* appends what became certain */
void detok_finish(struct detok *d, struct buf *out);           /* flushes a cut tail as U+FFFD */

#endif
