/* unicode_tables.h - the properties of code points that tokenizers ask for.
 *
 * Place:  text; used by split.c, nfc.c and added_tokens.c.
 * Source: the answers of the reference tokenizer (tools/unicode-tables/generate.mjs): Unicode 16 for
 *         the classes and words, Unicode 9 for combining classes and compositions. The libraries
 *         that Debian ships know other versions, so their tables would give other tokens. */
#ifndef TEXT_UNICODE_TABLES_H
#define TEXT_UNICODE_TABLES_H

#include <stdint.h>

enum unicode_flag {
    UNICODE_OTHER = 0, /* the low three bits are one of five classes */
    UNICODE_LETTER = 1,
    UNICODE_MARK = 2,
    UNICODE_NUMBER = 3,
    UNICODE_SPACE = 4,
    UNICODE_CLASS_MASK = 7,
    UNICODE_WORD = 8,        /* \w: what single_word tokens may not touch */
    UNICODE_NFC_ACTIVE = 16, /* NFC may change it, move it, or join it to what precedes */
    UNICODE_NFC_FOREIGN = 32 /* only in newer Unicode data; a newer normaliser must not see it */
};

enum { UNICODE_BLOCK_BITS = 7, UNICODE_INDEX_COUNT = 7173 };

extern const uint16_t unicode_block_index[UNICODE_INDEX_COUNT];
extern const uint8_t unicode_blocks[][1 << UNICODE_BLOCK_BITS];

static inline unsigned unicode_flags(uint32_t cp)
{
    uint32_t block = cp >> UNICODE_BLOCK_BITS;

    if (block >= UNICODE_INDEX_COUNT) {
        return UNICODE_OTHER; /* only private use and noncharacters lie behind the table */
    }
    return unicode_blocks[unicode_block_index[block]][cp & ((1u << UNICODE_BLOCK_BITS) - 1)];
}

static inline unsigned unicode_class(uint32_t cp)
{
    return unicode_flags(cp) & UNICODE_CLASS_MASK;
}

#endif
