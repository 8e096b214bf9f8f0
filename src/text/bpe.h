/* bpe.h - byte pair encoding of one piece of text.
 *
 * Place:  text, between vocab.h and tokenizer.h.
 * Idea:   a piece starts as one token per byte; of all neighbouring pairs that have a merge rule the
 *         one of lowest rank (leftmost of equals) is replaced by its result, until none is left.
 *         Short pieces keep their symbols in a small array that is searched again after each merge;
 *         long ones use a linked list and a heap of (rank, position), so that time stays n log n
 *         however the input is chosen. A cache remembers pieces within one call of the tokenizer. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/vocab.h"

enum {
    BPE_MERGES_MAX = 1 << 22,
    BPE_PIECE_BYTES_MAX = 1 << 30 /* positions are 32 bits wide */
};

struct bpe_rule { /* a slot of the hash table; new_id VOCAB_NONE when free */
    int32_t left, right, new_id;
    uint32_t rank;
};

struct bpe {
    struct vocab vocab;
    struct bpe_rule *rules;
    size_t n_slots, n_rules;
    int32_t byte_ids[256];
    bool ignore_merges; /* a piece that is an entry as a whole becomes that entry */

    /* Ids of added tokens that merging could produce from ordinary text: they are taken apart again
     * in untrusted text. Empty for nearly all vocabularies. */
    struct bpe_rule *guarded; /* by new_id; left is VOCAB_NONE when no rule makes it */
    size_t n_guarded;
};

void bpe_init(struct bpe *b);
void bpe_release(struct bpe *b);

/* Add rules in order of their rank; a pair given again takes the later rank. ERR_FORMAT when a part or
 * the result is not in the vocabulary. Parts are in the file's alphabet. */
struct bpe_loader { /* scratch of bpe_add_rule; release when done */
    struct buf left, right;
    uint32_t next_rank;
    int32_t last_result;
};
void bpe_loader_release(struct bpe_loader *l);
enum status bpe_add_rule(struct bpe *b, struct bpe_loader *l, struct str left, struct str right,
                         struct error *err);

/* After the vocabulary and all rules: find the ids of single bytes. Every byte that UTF-8 text can
 * hold must have one. */
enum status bpe_finish(struct bpe *b, struct error *err);

/* After bpe_finish, at most once: keep the ids of added tokens out of untrusted text. ERR_UNSUPPORTED
 * when that is impossible, because a special token is also the entry of a single byte. */
struct bpe_guard {
    int32_t id;
    bool is_special;
};
enum status bpe_guard_ids(struct bpe *b, const struct bpe_guard *ids, size_t n, struct error *err);

/* Cache and work memory of one call, one thread. The cache remembers places in the output, so one
 * scratch goes with one list of ids that only grows. */
struct bpe_scratch;

/* text_bytes: about how much will be encoded, to size the cache. NULL when out of memory. */
struct bpe_scratch *bpe_scratch_new(size_t text_bytes);
void bpe_scratch_free(struct bpe_scratch *s); /* accepts NULL */

/* Append the ids of one piece. False: out of memory. is_trusted: guarded ids are allowed. */
bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct str piece, bool is_trusted,
                struct token_ids *out);

#endif
