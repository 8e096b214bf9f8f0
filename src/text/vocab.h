/* vocab.h - token ids and the bytes that they stand for.
 *
 * Place: text, under bpe.h and tokenizer.h. Byte-level vocabularies are written in an alphabet in which
 *        every byte has a printable character ("Ġ" is a space). Here entries are kept as bytes. An
 *        entry with a character outside of the alphabet ("raw") keeps its UTF-8 text: encoding can
 *        never produce it, but decoding must print it.
 * Layout: all bytes in one block, an index by id, and a hash table of ids keyed by bytes. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum {
    VOCAB_IDS_MAX = 1 << 22, /* the largest public vocabularies have 262,144 */
    VOCAB_TOKEN_BYTES_MAX = 1 << 16,
    VOCAB_NONE = -1
};

struct vocab_entry {
    uint32_t start; /* in bytes.data */
    uint32_t len;
    bool is_known; /* the id exists */
    bool is_raw;
    bool is_guarded; /* set by bpe.c */
};

struct vocab_slot { /* of the hash table */
    int32_t id;     /* or VOCAB_NONE */
    uint32_t hash;  /* so that other entries need no look at their bytes */
};

struct vocab {
    struct buf bytes;
    struct vocab_entry *entries; /* by id */
    size_t n_ids;                /* highest id + 1 */
    size_t entries_cap;
    size_t n_model;           /* entries that the model itself has (not only an added token) */
    struct vocab_slot *slots; /* a power of two, at most half full */
    size_t n_slots;
};

void vocab_init(struct vocab *v);
void vocab_release(struct vocab *v);

/* Token text as the file has it -> bytes, replaced in out. *is_raw: see above. False: out of memory. */
bool vocab_text_to_bytes(struct buf *out, bool *is_raw, struct str text);

/* An entry of the model's vocabulary. ERR_FORMAT for an id or text that is already there. */
enum status vocab_add(struct vocab *v, struct str text, uint32_t id, struct buf *scratch,
                      struct error *err);
/* An id that only an added token has: known for decoding, not found by vocab_find(). */
enum status vocab_add_hidden(struct vocab *v, struct str text, uint32_t id, struct buf *scratch,
                             struct error *err);

/* The model's id for these bytes, or VOCAB_NONE. */
int32_t vocab_find(const struct vocab *v, struct str bytes, bool is_raw);

/* {NULL, 0} for an unknown id. Borrowed. */
struct str vocab_bytes(const struct vocab *v, int32_t id);

/* A well mixed hash of a short byte string; also for the cache of bpe.c. */
uint64_t vocab_hash(const char *bytes, size_t len);

#endif
