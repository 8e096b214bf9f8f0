/* tokenizer.h - byte-level BPE from a tokenizer.json.
 *
 * Place:  text. The ids equal those of the reference library (Hugging Face `tokenizers`) for files
 *         of this kind: normaliser NFC or none, a split pattern (Qwen2/3, Qwen3.5 and Llama-3 by
 *         hand-written scanners, any other through PCRE2), ByteLevel, BPE with merges or
 *         ignore_merges, added tokens with single_word, lstrip, rstrip, normalized, special.
 *         Anything else in the file is refused by name.
 * Threads: a loaded tokenizer is read-only and may be shared; the scratch of encode is per call. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum {
    TOKENIZER_FILE_BYTES_MAX = 256 << 20, /* the largest public ones have 33 MB */
    TOKENIZER_TEXT_BYTES_MAX = 1 << 30    /* positions in a text are 32 bits wide */
};

struct tokenizer;

/* path: the tokenizer.json. */
enum status tokenizer_load(struct tokenizer **out, const char *path, struct error *err);
enum status tokenizer_load_memory(struct tokenizer **out, const char *text, size_t len,
                                  struct error *err);
void tokenizer_free(struct tokenizer *t); /* accepts NULL */

struct token_ids { /* a growable list; zero-initialise; release with token_ids_release */
    int32_t *ids;
    size_t n, cap;
};
void token_ids_release(struct token_ids *l);
bool token_ids_push(struct token_ids *l, int32_t id);      /* false: out of memory */
bool token_ids_reserve(struct token_ids *l, size_t extra); /* the same */

/* Text is a list of runs. In a trusted run added tokens are recognised; in an untrusted one (the
 * user's text in a chat) the same characters are ordinary text. Runs are otherwise one text: NFC,
 * splitting and merging go across the border between two runs as if it were not there, except
 * that a recognised added token ends a piece as always. Tokens that strip white space take it from
 * trusted text only, so no character of an untrusted run is lost; and no id of an added token comes
 * out of one, not even where the merge rules would make it. No token is put before or after the text
 * (the reference's add_special_tokens = false). Each run is valid UTF-8 (else ERR_BAD_REQUEST with
 * the offset over all runs). ERR_LIMIT for more than TOKENIZER_TEXT_BYTES_MAX bytes. Appends to
 * *out; on failure *out keeps what it had. Time is about linear in the text, whatever it is, as
 * long as the file's pattern is one of the known ones. */
struct text_run {
    struct str text;
    bool is_trusted;
};
enum status tokenizer_encode(struct token_ids *out, const struct tokenizer *t,
                             const struct text_run *runs, size_t n_runs, struct error *err);

/* One trusted run. */
enum status tokenizer_encode_text(struct token_ids *out, const struct tokenizer *t, struct str text,
                                  struct error *err);

size_t tokenizer_vocab_size(const struct tokenizer *t); /* highest id + 1 */

/* The bytes that token id stands for (may be part of a UTF-8 character); {NULL,0} for an unknown id.
 * Added tokens give their content, read as the reference's decoder reads it: as bytes if all its
 * characters are of the byte alphabet. Borrowed. */
struct str tokenizer_bytes(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* added and flagged special */
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);
int32_t
tokenizer_id_of(const struct tokenizer *t,
                struct str content); /* an added token or vocabulary entry (raw byte form); -1 */

#endif
