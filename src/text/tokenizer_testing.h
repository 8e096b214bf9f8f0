/* tokenizer_testing.h - small tokenizer.json texts for tests.
 *
 * Place: text; helps its tests. The vocabulary is the 256 bytes (id = byte) and the result of each
 *        merge in order; added tokens get the ids after them. */
#ifndef TEXT_TOKENIZER_TESTING_H
#define TEXT_TOKENIZER_TESTING_H

#include "base/buf.h"
#include "text/tokenizer.h"

struct fixture {
    const char *merges[32][2]; /* pairs in the file's alphabet ("\u0120" is a blank) */
    const char *added[16];     /* elements of the added_tokens array */
    const char *model_more;    /* members of the model, each with a comma behind it, or NULL */
    const char *normalizer;    /* NULL: NFC */
    const char *pattern;       /* NULL: Qwen3.5's */
    bool joined_merges;        /* "a b" instead of ["a","b"] */
    bool merges_first;         /* before the vocabulary */
};

/* Append the file's text. */
void fixture_append(struct buf *out, const struct fixture *f);

/* NULL with *err filled when the text is refused. */
struct tokenizer *fixture_load(const struct fixture *f, struct error *err);

#endif
