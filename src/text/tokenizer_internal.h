/* tokenizer_internal.h - what tokenizer.c and tokenizer_file.c share.
 *
 * Place: text; private to these two and their tests. */
#ifndef TEXT_TOKENIZER_INTERNAL_H
#define TEXT_TOKENIZER_INTERNAL_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"

enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2 };

struct tokenizer {
    struct bpe bpe;
    struct added_tokens added;
    struct added_set raw_set;        /* looked for before normalisation */
    struct added_set normalized_set; /* and after it */
    struct split *split;
    bool has_nfc;
    unsigned char *flags; /* by id: TOKEN_ADDED, TOKEN_SPECIAL */
};

/* Fill an all-zero tokenizer from the text of a tokenizer.json. On failure t is half-built. */
enum status tokenizer_parse(struct tokenizer *t, struct str text, struct error *err);

#endif
