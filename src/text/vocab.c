/* vocab.c - the table of tokens. See vocab.h. */
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 1024, ENTRIES_MIN = 1024 };

void vocab_init(struct vocab *v)
{
    *v = (struct vocab){0};
    buf_init_limited(&v->bytes, UINT32_MAX);
}

void vocab_release(struct vocab *v)
{
    buf_release(&v->bytes);
    free(v->entries);
    free(v->slots);
    *v = (struct vocab){0};
}

/* The byte that a character of the alphabet stands for, or -1. The alphabet: printable ASCII and
 * Latin-1 characters stand for themselves; the other 68 bytes, in order, for U+0100 and up. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff)) {
        return (int)cp;
    }
    if (cp >= 0x100 && cp <= 0x120) { /* 00..20 */
        return (int)(cp - 0x100);
    }
    if (cp >= 0x121 && cp <= 0x142) { /* 7f..a0 */
        return (int)(cp - 0x121) + 0x7f;
    }
    return cp == 0x143 ? 0xad : -1;
}

bool vocab_text_to_bytes(struct buf *out, bool *is_raw, struct str text)
{
    size_t i = 0;

    *is_raw = false;
    buf_clear(out);
    if (!buf_reserve(out, text.len)) {
        return false;
    }
    while (i < text.len) {
        uint32_t cp;
        int byte;
        i += utf8_decode(&cp, text.ptr + i, text.len - i);
        byte = alphabet_byte(cp);
        if (byte < 0) {
            *is_raw = true;
            buf_clear(out);
            buf_append(out, text.ptr, text.len);
            break;
        }
        buf_append_char(out, (char)byte);
    }
    return buf_ok(out);
}

/* Eight bytes a step, each mixed by a multiplication whose two halves are folded together. */
uint64_t vocab_hash(const char *bytes, size_t len)
{
    uint64_t h = len * UINT64_C(0x9e3779b97f4a7c15);

    while (len > 0) {
        uint64_t word = 0;
        size_t n = len < sizeof word ? len : sizeof word;
        __uint128_t product;
        memcpy(&word, bytes, n);
        product = (__uint128_t)(h ^ word) * UINT64_C(0xd6e8feb86659fd93);
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
        bytes += n;
        len -= n;
    }
    return h ^ h >> 29;
}

static struct str entry_bytes(const struct vocab *v, const struct vocab_entry *e)
{
    return (struct str){e->len ? v->bytes.data + e->start : "", e->len};
}

/* The slot that holds these bytes, or the free one where they belong. */
static struct vocab_slot *slot_of(const struct vocab *v, struct str bytes, bool is_raw,
                                  uint32_t hash)
{
    size_t mask = v->n_slots - 1;
    size_t i = hash & mask;

    for (; v->slots[i].id != VOCAB_NONE; i = (i + 1) & mask) {
        const struct vocab_entry *e = &v->entries[v->slots[i].id];
        if (v->slots[i].hash == hash && e->is_raw == is_raw && str_eq(entry_bytes(v, e), bytes)) {
            break;
        }
    }
    return &v->slots[i];
}

static bool grow_slots(struct vocab *v)
{
    size_t n_old = v->n_slots, n = n_old ? n_old * 2 : SLOTS_MIN;
    struct vocab_slot *slots = malloc(n * sizeof *slots);

    if (!slots) {
        return false;
    }
    memset(slots, 0xff, n * sizeof *slots); /* VOCAB_NONE */
    for (size_t i = 0; i < n_old; i++) {
        size_t at = v->slots[i].hash & (n - 1);
        if (v->slots[i].id == VOCAB_NONE) {
            continue;
        }
        while (slots[at].id != VOCAB_NONE) {
            at = (at + 1) & (n - 1);
        }
        slots[at] = v->slots[i];
    }
    free(v->slots);
    v->slots = slots;
    v->n_slots = n;
    return true;
}

static bool reserve_id(struct vocab *v, uint32_t id)
{
    size_t cap = v->entries_cap ? v->entries_cap : ENTRIES_MIN;
    struct vocab_entry *entries;

    if (id >= v->entries_cap) {
        while (cap <= id) {
            cap *= 2;
        }
        entries = realloc(v->entries, cap * sizeof *entries);
        if (!entries) {
            return false;
        }
        memset(entries + v->entries_cap, 0, (cap - v->entries_cap) * sizeof *entries);
        v->entries = entries;
        v->entries_cap = cap;
    }
    if (id >= v->n_ids) {
        v->n_ids = (size_t)id + 1;
    }
    return true;
}

/* Store the bytes of a new id; *is_raw says which kind they are. */
static enum status store(struct vocab *v, struct str text, uint32_t id, struct buf *scratch,
                         bool *is_raw, struct error *err)
{
    if (id >= VOCAB_IDS_MAX) {
        return error_set(err, ERR_LIMIT, "token id %u is over the limit of %d", id,
                         VOCAB_IDS_MAX - 1);
    }
    if (text.len > VOCAB_TOKEN_BYTES_MAX) {
        return error_set(err, ERR_LIMIT, "token %u has %zu bytes, more than %d", id, text.len,
                         VOCAB_TOKEN_BYTES_MAX);
    }
    if (id < v->n_ids && v->entries[id].is_known) {
        return error_set(err, ERR_FORMAT, "token id %u is there twice", id);
    }
    if (!vocab_text_to_bytes(scratch, is_raw, text) || !reserve_id(v, id)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the vocabulary");
    }
    v->entries[id] = (struct vocab_entry){.start = (uint32_t)v->bytes.len,
                                          .len = (uint32_t)scratch->len,
                                          .is_known = true,
                                          .is_raw = *is_raw};
    buf_append(&v->bytes, scratch->data, scratch->len);
    if (!buf_ok(&v->bytes)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the vocabulary's bytes");
    }
    return OK;
}

enum status vocab_add(struct vocab *v, struct str text, uint32_t id, struct buf *scratch,
                      struct error *err)
{
    bool is_raw;
    struct vocab_slot *slot;
    uint32_t hash;
    enum status rc = store(v, text, id, scratch, &is_raw, err);

    if (rc != OK) {
        return rc;
    }
    if (2 * v->n_model >= v->n_slots && !grow_slots(v)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the vocabulary's index");
    }
    hash = (uint32_t)vocab_hash(scratch->data, scratch->len);
    slot = slot_of(v, entry_bytes(v, &v->entries[id]), is_raw, hash);
    if (slot->id != VOCAB_NONE) {
        return error_set(err, ERR_FORMAT, "tokens %d and %u have the same text", slot->id, id);
    }
    *slot = (struct vocab_slot){(int32_t)id, hash};
    v->n_model++;
    return OK;
}

enum status vocab_add_hidden(struct vocab *v, struct str text, uint32_t id, struct buf *scratch,
                             struct error *err)
{
    bool is_raw;

    return store(v, text, id, scratch, &is_raw, err);
}

int32_t vocab_find(const struct vocab *v, struct str bytes, bool is_raw)
{
    if (v->n_slots == 0) {
        return VOCAB_NONE;
    }
    return slot_of(v, bytes, is_raw, (uint32_t)vocab_hash(bytes.ptr, bytes.len))->id;
}

struct str vocab_bytes(const struct vocab *v, int32_t id)
{
    if (id < 0 || (size_t)id >= v->n_ids || !v->entries[id].is_known) {
        return (struct str){NULL, 0};
    }
    return entry_bytes(v, &v->entries[id]);
}
