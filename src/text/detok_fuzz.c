/* detok_fuzz.c - token ids in any order through the incremental detokeniser.
 *
 * Input:  pairs of bytes, each an id of the demo model's tokenizer (some beyond its end).
 * Checks: every piece is valid UTF-8; the pieces joined equal the whole decoded at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/detok.h"

#define RILL SPILLWAY_SOURCE_DIR "/models/rill/tokenizer.json"

static void check(bool is_true)
{
    if (!is_true) {
        abort();
    }
}

static int32_t id_at(const uint8_t *data, size_t i)
{
    int32_t id = data[2 * i] | data[2 * i + 1] << 8;

    return id & 0x8000 ? id & 0xff : id & 0x1fff; /* half of them are single bytes */
}

static void append_valid(struct buf *out, struct buf *piece)
{
    check(utf8_valid_prefix(piece->data, piece->len) == piece->len);
    buf_append(out, piece->data, piece->len);
    buf_clear(piece);
}

static void push_all(struct buf *out, const struct tokenizer *t, bool skip_special,
                     const uint8_t *data, size_t n)
{
    struct buf piece = {0};
    struct detok d;

    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, id_at(data, i), &piece);
        append_valid(out, &piece);
    }
    detok_finish(&d, &piece);
    append_valid(out, &piece);
    buf_release(&piece);
}

static void decode_whole(struct buf *out, const struct tokenizer *t, bool skip_special,
                         const uint8_t *data, size_t n)
{
    struct buf bytes = {0};

    for (size_t i = 0; i < n; i++) {
        int32_t id = id_at(data, i);
        struct str piece = tokenizer_bytes(t, id);
        if (!skip_special || !tokenizer_is_special(t, id)) {
            buf_append(&bytes, piece.ptr, piece.len);
        }
    }
    for (size_t i = 0; i < bytes.len;) {
        uint32_t cp;
        char text[4];
        i += utf8_decode(&cp, bytes.data + i, bytes.len - i);
        buf_append(out, text, utf8_encode(text, cp));
    }
    buf_release(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t; /* loaded once, for all inputs */
    struct error err = {0};

    if (!t && tokenizer_load(&t, RILL, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    for (int skip_special = 0; skip_special < 2; skip_special++) {
        struct buf pieces = {0}, whole = {0};
        push_all(&pieces, t, skip_special, data, size / 2);
        decode_whole(&whole, t, skip_special, data, size / 2);
        check(pieces.len == whole.len);
        check(whole.len == 0 || memcmp(pieces.data, whole.data, whole.len) == 0);
        buf_release(&pieces);
        buf_release(&whole);
    }
    return 0;
}
