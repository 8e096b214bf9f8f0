/* gptq_unpack.c - from packed words to bytes per value, and to plain floats.
 *
 * Place:  formats; see gptq.h. Works on a checked gptq_matrix, so nothing here can fail.
 * Idea:   a word holds consecutive inputs of one output, and words of neighbouring outputs lie
 *         together. The callers want outputs as rows, so this is a transposition: it goes in tiles of
 *         TILE outputs, which is one cache line of words read and TILE rows written in step.
 * gptq_dequantise() takes another path on purpose (one value at a time, in the original order), so
 *         that each checks the other. */
#include <assert.h>
#include <string.h>

#include "base/size.h"
#include "formats/gptq.h"

enum { TILE = 16 /* outputs: 64 bytes of words */ };

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* Field `i` (0 = lowest) of a packed word. */
static uint8_t field(uint32_t word, unsigned bits, size_t i)
{
    return (uint8_t)(word >> (bits * i) & ((1u << bits) - 1));
}

/* Eight 4-bit fields to eight bytes: halves, bytes and nibbles move apart in turn. */
static uint64_t spread_nibbles(uint32_t word)
{
    uint64_t x = word;

    x = (x | x << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* n <= TILE rows in the file's order. A word's bytes go out with one store, as their order in the row
 * is the order in the word. */
static void unpack_plain(const struct gptq_matrix *m, size_t row, size_t n, uint8_t *q)
{
    size_t n_words = m->n_in * m->bits / 32;
    const uint8_t *words = m->qweight + 4 * row;

    if (m->bits == 4) {
        for (size_t r = 0; r < n_words; r++, words += 4 * m->n_out) {
            for (size_t j = 0; j < n; j++) {
                uint64_t bytes = spread_nibbles(load_u32(words + 4 * j));

                memcpy(q + j * m->n_in + 8 * r, &bytes, 8);
            }
        }
    } else {
        for (size_t r = 0; r < n_words; r++, words += 4 * m->n_out) {
            for (size_t j = 0; j < n; j++) {
                memcpy(q + j * m->n_in + 4 * r, words + 4 * j, 4);
            }
        }
    }
}

/* Add field `k` of n outputs to the bytes of acc at bit `at`. With n a constant TILE this is a handful of
 * vector instructions. */
static inline void add_input(uint32_t *acc, const struct gptq_matrix *m, size_t row, size_t n,
                             size_t k, unsigned at)
{
    size_t per_word = 32 / m->bits;
    const uint8_t *words = m->qweight + 4 * (k / per_word * m->n_out + row);
    unsigned shift = m->bits * (unsigned)(k % per_word);
    uint32_t mask = (1u << m->bits) - 1;

    for (size_t j = 0; j < n; j++) {
        acc[j] |= (load_u32(words + 4 * j) >> shift & mask) << at;
    }
}

/* The same in the order of perm: place i takes its field from wherever input perm[i] lies. Four places
 * at a time, so that a row gets one store for them; n_in is a multiple of four. */
static void unpack_permuted(const struct gptq_matrix *m, size_t row, size_t n, uint8_t *q)
{
    for (size_t i = 0; i < m->n_in; i += 4) {
        uint32_t acc[TILE] = {0};

        for (unsigned part = 0; part < 4; part++) {
            size_t k = (size_t)m->perm[i + part];

            if (n == TILE) {
                add_input(acc, m, row, TILE, k, 8 * part);
            } else {
                add_input(acc, m, row, n, k, 8 * part);
            }
        }
        for (size_t j = 0; j < n; j++) {
            memcpy(q + j * m->n_in + i, &acc[j], 4);
        }
    }
}

/* The zero of (group, output), after the correction: v1 stores zero - 1 by a subtraction on whole
 * words, so the addition runs on whole words too and borrows undo themselves. */
static uint8_t zero_at(const struct gptq_matrix *m, size_t group, size_t row)
{
    size_t per_word = 32 / m->bits, n_words = (m->n_out + per_word - 1) / per_word;
    uint32_t word;

    if (!m->qzeros) {
        return (uint8_t)(1u << (m->bits - 1));
    }
    word = load_u32(m->qzeros + 4 * (group * n_words + row / per_word));
    if (m->zeros_are_v1) {
        word += m->bits == 4 ? 0x11111111u : 0x01010101u;
    }
    return field(word, m->bits, row % per_word);
}

static const uint8_t *scale_ptr(const struct gptq_matrix *m, size_t group, size_t row)
{
    return (const uint8_t *)m->scales.data +
           (group * m->n_out + row) * dtype_bytes(m->scales.dtype);
}

void gptq_unpack(const struct gptq_matrix *m, size_t row0, size_t row1, uint8_t *q, uint8_t *zeros,
                 float *scales)
{
    assert(row0 <= row1 && row1 <= m->n_out);
    assert(zeros || !m->qzeros);
    for (size_t row = row0; row < row1; row += TILE) {
        size_t n = size_min(TILE, row1 - row);
        uint8_t *q_tile = q + (row - row0) * m->n_in;

        if (m->perm) {
            unpack_permuted(m, row, n, q_tile);
        } else {
            unpack_plain(m, row, n, q_tile);
        }
        for (size_t g = 0; g < m->n_groups; g++) {
            float s[TILE];

            dtype_to_f32(s, m->scales.dtype, scale_ptr(m, g, row), n);
            for (size_t j = 0; j < n; j++) {
                size_t at = (row - row0 + j) * m->n_groups + g;

                scales[at] = s[j];
                if (zeros) {
                    zeros[at] = zero_at(m, g, row + j);
                }
            }
        }
    }
}

void gptq_dequantise(const struct gptq_matrix *m, size_t row0, size_t row1, float *out)
{
    size_t per_word = 32 / m->bits;

    assert(row0 <= row1 && row1 <= m->n_out);
    for (size_t i = 0; i < m->n_in; i++) {
        size_t k = m->perm ? (size_t)m->perm[i] : i;
        size_t g = m->irregular_g_idx ? load_u32(m->irregular_g_idx + 4 * k) : i / m->group_size;
        const uint8_t *words = m->qweight + 4 * (k / per_word * m->n_out);

        for (size_t row = row0; row < row1; row++) {
            int q = field(load_u32(words + 4 * row), m->bits, k % per_word);
            int zero = zero_at(m, g, row);

            out[(row - row0) * m->n_in + k] =
                (float)(q - zero) * dtype_load(m->scales.dtype, scale_ptr(m, g, row), 0);
        }
    }
}
