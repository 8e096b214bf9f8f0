/* bpe.c - the merge rules and the merging. See bpe.h.
 *
 * The trade-off at SHORT_PIECE_BYTES: searching the array again after each merge is quadratic but
 * touches a few hundred bytes; up to a few dozen symbols it beats any queue. */
#include "text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHORT_PIECE_BYTES = 48,
    HEAP_MIN = 1024,
    RULE_SLOTS_MIN = 1024,
    CACHE_KEY_BYTES = 48, /* longer pieces are rare and not cached */
    CACHE_ENTRIES_MAX = 1 << 14,
    CACHE_ENTRIES_MIN = 64,
    CACHE_TEXT_PER_ENTRY = 16 /* bytes; a piece has about five, and half of them repeat */
};

static const uint32_t NO_RANK = UINT32_MAX;

void bpe_init(struct bpe *b)
{
    *b = (struct bpe){0};
    vocab_init(&b->vocab);
}

void bpe_release(struct bpe *b)
{
    vocab_release(&b->vocab);
    free(b->rules);
    free(b->guarded);
    *b = (struct bpe){0};
}

/* ---- rules ---- */

static struct bpe_rule *rule_slot(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = b->n_slots - 1;
    size_t i;

    key *= UINT64_C(0x9e3779b97f4a7c15);
    i = (size_t)(key ^ key >> 32) & mask;
    while (b->rules[i].new_id != VOCAB_NONE &&
           (b->rules[i].left != left || b->rules[i].right != right)) {
        i = (i + 1) & mask;
    }
    return &b->rules[i];
}

/* The rule of a pair, or NULL. */
static const struct bpe_rule *rule_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_rule *rule = b->n_slots ? rule_slot(b, left, right) : NULL;

    return rule && rule->new_id != VOCAB_NONE ? rule : NULL;
}

static uint32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_rule *rule = rule_of(b, left, right);

    return rule ? rule->rank : NO_RANK;
}

static bool grow_rules(struct bpe *b)
{
    struct bpe_rule *old = b->rules;
    size_t n_old = b->n_slots, n = n_old ? n_old * 2 : RULE_SLOTS_MIN;
    struct bpe_rule *rules = malloc(n * sizeof *rules);

    if (!rules) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        rules[i] = (struct bpe_rule){.new_id = VOCAB_NONE};
    }
    b->rules = rules;
    b->n_slots = n;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].new_id != VOCAB_NONE) {
            *rule_slot(b, old[i].left, old[i].right) = old[i];
        }
    }
    free(old);
    return true;
}

void bpe_loader_release(struct bpe_loader *l)
{
    buf_release(&l->left);
    buf_release(&l->right);
}

/* Bytes in `out` and id of one part of a rule. */
static enum status find_part(int32_t *id, bool *is_raw, struct buf *out, const struct bpe *b,
                             struct str part, uint32_t rank, struct error *err)
{
    if (!vocab_text_to_bytes(out, is_raw, part)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate merge rule %u", rank);
    }
    *id = vocab_find(&b->vocab, (struct str){buf_cstr(out), out->len}, *is_raw);
    if (*id == VOCAB_NONE) {
        return error_set(err, ERR_FORMAT, "merge rule %u: '%.*s' is not in the vocabulary", rank,
                         (int)(part.len < 64 ? part.len : 64), part.ptr);
    }
    return OK;
}

/* The id of the bytes in l->left. Vocabularies are numbered in the order of their rules, so the
 * next id is tried first: it is in the processor's cache, a slot of the index is not. */
static int32_t find_result(const struct bpe *b, struct bpe_loader *l)
{
    struct str bytes = {buf_cstr(&l->left), l->left.len};
    struct str next = vocab_bytes(&b->vocab, l->last_result + 1);

    if (next.ptr && str_eq(next, bytes) && !b->vocab.entries[l->last_result + 1].is_raw) {
        l->last_result++;
    } else {
        int32_t id = vocab_find(&b->vocab, bytes, false);
        if (id == VOCAB_NONE) {
            return VOCAB_NONE;
        }
        l->last_result = id;
    }
    return l->last_result;
}

enum status bpe_add_rule(struct bpe *b, struct bpe_loader *l, struct str left, struct str right,
                         struct error *err)
{
    struct bpe_rule *slot, rule = {.rank = l->next_rank};
    bool left_raw, right_raw;
    enum status rc;

    if (l->next_rank >= BPE_MERGES_MAX) {
        return error_set(err, ERR_LIMIT, "more than %d merge rules", BPE_MERGES_MAX);
    }
    rc = find_part(&rule.left, &left_raw, &l->left, b, left, rule.rank, err);
    if (rc == OK) {
        rc = find_part(&rule.right, &right_raw, &l->right, b, right, rule.rank, err);
    }
    if (rc != OK) {
        return rc;
    }
    l->next_rank++;
    if (left_raw || right_raw) {
        return OK; /* can never apply: no byte sequence encodes to a raw entry */
    }
    buf_append(&l->left, l->right.data, l->right.len);
    if (!buf_ok(&l->left)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate merge rule %u", rule.rank);
    }
    rule.new_id = find_result(b, l);
    if (rule.new_id == VOCAB_NONE) {
        return error_set(err, ERR_FORMAT,
                         "merge rule %u: the result of '%.*s' and '%.*s' is not in the vocabulary",
                         rule.rank, (int)(left.len < 64 ? left.len : 64), left.ptr,
                         (int)(right.len < 64 ? right.len : 64), right.ptr);
    }
    if (2 * b->n_rules >= b->n_slots && !grow_rules(b)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the merge rules");
    }
    slot = rule_slot(b, rule.left, rule.right);
    b->n_rules += slot->new_id == VOCAB_NONE;
    *slot = rule;
    return OK;
}

enum status bpe_finish(struct bpe *b, struct error *err)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        bool never_in_utf8 = byte == 0xc0 || byte == 0xc1 || byte >= 0xf5;
        b->byte_ids[byte] = vocab_find(&b->vocab, (struct str){&c, 1}, false);
        if (b->byte_ids[byte] == VOCAB_NONE && !never_in_utf8) {
            return error_set(err, ERR_FORMAT, "the vocabulary has no entry for byte 0x%02x", byte);
        }
    }
    return OK;
}

/* ---- keeping control tokens out of untrusted text ---- */

static int compare_new_ids(const void *a, const void *b)
{
    int32_t x = ((const struct bpe_rule *)a)->new_id, y = ((const struct bpe_rule *)b)->new_id;

    return x < y ? -1 : x > y;
}

static struct bpe_rule *guard_of(const struct bpe *b, int32_t id)
{
    const struct bpe_rule key = {.new_id = id};

    if (!b->vocab.entries[id].is_guarded) {
        return NULL;
    }
    return bsearch(&key, b->guarded, b->n_guarded, sizeof key, compare_new_ids);
}

/* For each guarded id the rule of lowest rank that makes it. */
static void find_guarded_rules(struct bpe *b)
{
    for (size_t i = 0; i < b->n_slots; i++) {
        const struct bpe_rule *rule = &b->rules[i];
        struct bpe_rule *guard = rule->new_id == VOCAB_NONE ? NULL : guard_of(b, rule->new_id);
        if (guard && rule->rank < guard->rank) {
            *guard = *rule;
        }
    }
}

enum status bpe_guard_ids(struct bpe *b, const struct bpe_guard *ids, size_t n, struct error *err)
{
    assert(b->n_guarded == 0);
    if (n == 0) {
        return OK;
    }
    b->guarded = calloc(n, sizeof *b->guarded);
    if (!b->guarded) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of guarded tokens");
    }
    for (size_t i = 0; i < n; i++) {
        struct str bytes = vocab_bytes(&b->vocab, ids[i].id);
        struct vocab_entry *entry = &b->vocab.entries[ids[i].id];
        if (entry->is_raw || vocab_find(&b->vocab, bytes, false) != ids[i].id) {
            continue; /* known to the added tokens alone: merging cannot make it */
        }
        if (bytes.len == 1) {
            if (ids[i].is_special) {
                return error_set(err, ERR_UNSUPPORTED,
                                 "special token %d is also the entry of a single byte", ids[i].id);
            }
            continue;
        }
        entry->is_guarded = true;
        b->guarded[b->n_guarded++] =
            (struct bpe_rule){.new_id = ids[i].id, .left = VOCAB_NONE, .rank = NO_RANK};
    }
    qsort(b->guarded, b->n_guarded, sizeof *b->guarded, compare_new_ids);
    find_guarded_rules(b);
    return OK;
}

/* Append id, or what it is made of when it is guarded. The parts are shorter, so this ends; their
 * number is bounded by the token's bytes, the depth by their number. */
static bool push_apart(const struct bpe *b, int32_t id, struct token_ids *out)
{
    const struct bpe_rule *guard = guard_of(b, id);

    if (!guard || guard->left == VOCAB_NONE) {
        return token_ids_push(out, id);
    }
    return push_apart(b, guard->left, out) && push_apart(b, guard->right, out);
}

/* Take guarded ids at out[from..] apart. */
static bool unguard(const struct bpe *b, struct token_ids *out, size_t from)
{
    struct token_ids clean = {0};
    bool is_ok = true, found = false;

    for (size_t i = from; i < out->n; i++) {
        found = found || guard_of(b, out->ids[i]);
    }
    if (!found) {
        return true;
    }
    for (size_t i = from; i < out->n && is_ok; i++) {
        is_ok = push_apart(b, out->ids[i], &clean);
    }
    out->n = from;
    for (size_t i = 0; i < clean.n && is_ok; i++) {
        is_ok = token_ids_push(out, clean.ids[i]);
    }
    token_ids_release(&clean);
    return is_ok;
}

/* ---- work memory ---- */

struct cache_entry {
    uint32_t hash;
    uint32_t at; /* where the piece's ids stand in the output */
    uint16_t n_ids;
    uint8_t key_len; /* 0: free */
    uint8_t is_trusted;
    char key[CACHE_KEY_BYTES];
};

struct symbol {
    int32_t id;          /* VOCAB_NONE: merged away */
    uint32_t rank;       /* of the pair that starts here */
    uint32_t prev, next; /* positions; the end is n */
};

struct bpe_scratch {
    struct cache_entry *cache;
    size_t n_cache; /* a power of two */
    struct symbol *symbols;
    size_t symbols_cap;
    uint64_t *heap; /* rank << 32 | position */
    size_t n_heap, heap_cap;
};

struct bpe_scratch *bpe_scratch_new(size_t text_bytes)
{
    struct bpe_scratch *s = calloc(1, sizeof *s);

    if (!s) {
        return NULL;
    }
    s->n_cache = CACHE_ENTRIES_MIN;
    while (s->n_cache < CACHE_ENTRIES_MAX && s->n_cache * CACHE_TEXT_PER_ENTRY < text_bytes) {
        s->n_cache *= 2;
    }
    s->cache = calloc(s->n_cache, sizeof *s->cache);
    if (!s->cache) {
        free(s);
        return NULL;
    }
    return s;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    if (!s) {
        return;
    }
    free(s->cache);
    free(s->symbols);
    free(s->heap);
    free(s);
}

/* ---- merging ---- */

/* out has room for piece.len ids. */
static void merge_short(const struct bpe *b, struct str piece, struct token_ids *out)
{
    int32_t *ids = out->ids + out->n;
    uint32_t ranks[SHORT_PIECE_BYTES]; /* of the pair (i, i + 1) */
    size_t n = piece.len;

    for (size_t i = 0; i < n; i++) {
        ids[i] = b->byte_ids[(unsigned char)piece.ptr[i]];
    }
    for (size_t i = 0; i + 1 < n; i++) {
        ranks[i] = rank_of(b, ids[i], ids[i + 1]);
    }
    while (n > 1) {
        uint32_t best = NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (ranks[i] < best) {
                best = ranks[i];
                at = i;
            }
        }
        if (best == NO_RANK) {
            break;
        }
        ids[at] = rule_of(b, ids[at], ids[at + 1])->new_id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(ranks + at, ranks + at + 1, (n - at - 1) * sizeof *ranks);
        if (at > 0) {
            ranks[at - 1] = rank_of(b, ids[at - 1], ids[at]);
        }
        if (at + 1 < n) {
            ranks[at] = rank_of(b, ids[at], ids[at + 1]);
        }
    }
    out->n += n;
}

/* A heap with four children a node: half the levels, and the four lie in one cache line. */
static bool heap_push(struct bpe_scratch *s, uint64_t key)
{
    size_t i = s->n_heap;

    if (s->n_heap == s->heap_cap) {
        size_t cap = s->heap_cap ? s->heap_cap * 2 : HEAP_MIN;
        uint64_t *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) {
            return false;
        }
        s->heap = heap;
        s->heap_cap = cap;
    }
    s->n_heap++;
    while (i > 0 && s->heap[(i - 1) / 4] > key) {
        s->heap[i] = s->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    s->heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t n = s->n_heap, i = 0;

    while (4 * i + 1 < n) {
        size_t child = 4 * i + 1, end = child + 4 < n ? child + 4 : n, least = child;
        for (size_t c = child + 1; c < end; c++) {
            if (s->heap[c] < s->heap[least]) {
                least = c;
            }
        }
        if (s->heap[least] >= last) {
            break;
        }
        s->heap[i] = s->heap[least];
        i = least;
    }
    s->heap[i] = last;
    return top;
}

/* Look up the pair that starts at position i and queue it. */
static bool queue_pair(const struct bpe *b, struct bpe_scratch *s, uint32_t i, size_t n)
{
    struct symbol *symbol = &s->symbols[i];

    symbol->rank = symbol->next < n ? rank_of(b, symbol->id, s->symbols[symbol->next].id) : NO_RANK;
    return symbol->rank == NO_RANK || heap_push(s, (uint64_t)symbol->rank << 32 | i);
}

static bool start_long(const struct bpe *b, struct bpe_scratch *s, struct str piece)
{
    size_t n = piece.len;

    if (n > s->symbols_cap) {
        free(s->symbols);
        s->symbols = malloc(n * sizeof *s->symbols);
        s->symbols_cap = s->symbols ? n : 0;
        if (!s->symbols) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        s->symbols[i] = (struct symbol){.id = b->byte_ids[(unsigned char)piece.ptr[i]],
                                        .prev = (uint32_t)(i ? i - 1 : n),
                                        .next = (uint32_t)(i + 1)};
    }
    s->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        if (!queue_pair(b, s, (uint32_t)i, n)) {
            return false;
        }
    }
    return true;
}

/* out has room for piece.len ids. */
static bool merge_long(const struct bpe *b, struct bpe_scratch *s, struct str piece,
                       struct token_ids *out)
{
    size_t n = piece.len;

    if (!start_long(b, s, piece)) {
        return false;
    }
    while (s->n_heap > 0) {
        uint64_t key = heap_pop(s);
        uint32_t i = (uint32_t)key, gone;
        struct symbol *symbol = &s->symbols[i];
        if (symbol->id == VOCAB_NONE || symbol->rank != (uint32_t)(key >> 32)) {
            continue; /* the pair has changed since; its new form was queued then */
        }
        gone = symbol->next;
        symbol->id = rule_of(b, symbol->id, s->symbols[gone].id)->new_id;
        symbol->next = s->symbols[gone].next;
        s->symbols[gone].id = VOCAB_NONE;
        if (symbol->next < n) {
            s->symbols[symbol->next].prev = i;
        }
        if (symbol->prev < n && !queue_pair(b, s, symbol->prev, n)) {
            return false;
        }
        if (!queue_pair(b, s, i, n)) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i = s->symbols[i].next) {
        out->ids[out->n++] = s->symbols[i].id;
    }
    return true;
}

static bool encode_fresh(const struct bpe *b, struct bpe_scratch *s, struct str piece,
                         bool is_trusted, struct token_ids *out)
{
    size_t from = out->n;

    if (b->ignore_merges) {
        int32_t id = vocab_find(&b->vocab, piece, false);
        if (id != VOCAB_NONE && (is_trusted || !guard_of(b, id))) {
            return token_ids_push(out, id);
        }
    }
    if (!token_ids_reserve(out, piece.len)) {
        return false;
    }
    if (piece.len <= SHORT_PIECE_BYTES) {
        merge_short(b, piece, out);
    } else if (!merge_long(b, s, piece, out)) {
        return false;
    }
    return is_trusted || unguard(b, out, from);
}

bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct str piece, bool is_trusted,
                struct token_ids *out)
{
    struct cache_entry *entry;
    size_t from = out->n;
    uint64_t hash;

    assert(piece.len > 0 && piece.len <= BPE_PIECE_BYTES_MAX);
    is_trusted = is_trusted || b->n_guarded == 0; /* one cache entry for both */
    if (piece.len == 1) {
        return token_ids_push(out, b->byte_ids[(unsigned char)piece.ptr[0]]);
    }
    if (piece.len > CACHE_KEY_BYTES) {
        return encode_fresh(b, s, piece, is_trusted, out);
    }
    hash = vocab_hash(piece.ptr, piece.len);
    entry = &s->cache[hash & (s->n_cache - 1)];
    if (entry->hash == (uint32_t)(hash >> 32) && entry->key_len == piece.len &&
        entry->is_trusted == is_trusted && memcmp(entry->key, piece.ptr, piece.len) == 0) {
        if (!token_ids_reserve(out, entry->n_ids)) {
            return false;
        }
        memcpy(out->ids + from, out->ids + entry->at, entry->n_ids * sizeof *out->ids);
        out->n += entry->n_ids;
        return true;
    }
    if (!encode_fresh(b, s, piece, is_trusted, out)) {
        return false;
    }
    if (from <= UINT32_MAX) {
        entry->hash = (uint32_t)(hash >> 32);
        entry->at = (uint32_t)from;
        entry->n_ids = (uint16_t)(out->n - from);
        entry->key_len = (uint8_t)piece.len;
        entry->is_trusted = is_trusted;
        memcpy(entry->key, piece.ptr, piece.len);
    }
    return true;
}
