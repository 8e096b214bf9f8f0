/* gptq.h - GPTQ metadata and unpacking.
 *
 * Place:  formats. 4 and 8 bit; v1 ("gptq") and v2 zero convention; symmetric or not; any group size
 *         incl. -1; act-order by g_idx; `dynamic` rules; scales F16, BF16 or F32; packed in int32.
 *         2 and 3 bit and other packings are refused by name.
 * Rules:  content wins over metadata (qweight present = quantised), disagreement is a warning;
 *         a symmetric file's qzeros that are all 7s or all 8s (0x7f / 0x80 for 8 bit) mean 2^(bits-1);
 *         anything else there is read as asymmetric by the declared format, with a warning. v1 to v2
 *         adds the constant to whole 32-bit words. */
#ifndef FORMATS_GPTQ_H
#define FORMATS_GPTQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/tensor.h"

enum {
    GPTQ_RULES_MAX = 1024, /* `dynamic` */
    GPTQ_PATTERN_BYTES_MAX = 4096,
    GPTQ_MATCH_STEPS_MAX =
        100000 /* per rule and name: a pattern that backtracks longer is refused */
};

struct gptq_rule;

struct gptq_settings {  /* what holds for one module after `dynamic` */
    unsigned bits;      /* 4 or 8 */
    int64_t group_size; /* > 0, or -1: one group per column */
    bool is_symmetric;
    bool has_desc_act;
    bool is_v2;
    bool is_quantised; /* false: a "-:" rule matched, or lm_head false */
};

struct gptq_config;

/* From quantization_config of config.json or the top of quantize_config.json. *out NULL with OK when
 * the model is not quantised (o NULL). ERR_UNSUPPORTED names method or bits. */
enum status gptq_config_new(struct gptq_config **out, struct json_object *o, struct error *err);
void gptq_config_free(struct gptq_config *c);
const struct gptq_settings *gptq_config_default(const struct gptq_config *c);

/* The settings of module `name` (a checkpoint name without ".weight"/".qweight"): first matching
 * rule, anchored at the start as Python's re.match. lm_head needs the file's lm_head switch besides
 * and embeddings never count as quantised: official files name both in rules that do nothing.
 * Thread-safe on one config. */
enum status gptq_config_for(struct gptq_settings *out, const struct gptq_config *c,
                            const char *name, struct error *err);

struct gptq_tensors {      /* as found in the checkpoint; qzeros and g_idx may have data == NULL */
    struct tensor qweight; /* [in*bits/32, out] I32 */
    struct tensor qzeros;  /* [groups, out*bits/32] I32 */
    struct tensor scales;  /* [groups, out] F16, BF16, F32 */
    struct tensor g_idx;   /* [in] I32 */
};

/* What was odd about a module and how it was read: bits of gptq_matrix.notes. */
enum {
    GPTQ_NOTE_NOT_EXPECTED = 1 << 0, /* metadata says plain, the file holds qweight: quantised */
    GPTQ_NOTE_OTHER_ZEROS =
        1 << 1, /* symmetric zeros in the other convention: 2^(bits-1) all the same */
    GPTQ_NOTE_ASYMMETRIC = 1 << 2, /* marked symmetric, zeros are not: read as asymmetric */
    GPTQ_NOTE_FLOODED = 1 << 3, /* v1 zeros whose upper fields are all ones: old packing fault? */
    GPTQ_NOTE_ORDERED = 1 << 4, /* desc_act is false, g_idx is permuted: g_idx applied */
    GPTQ_NOTE_COUNT = 5
};

/* The text of one note bit, without the module's name. */
const char *gptq_note_text(unsigned note);

/* A checked matrix, ready to unpack. Borrows the tensors' data. */
struct gptq_matrix {
    const char *name;
    unsigned bits;
    size_t n_in, n_out, n_groups;
    size_t group_size; /* inputs per group (the last group may be short) */
    const uint8_t *qweight,
        *qzeros; /* qzeros NULL: symmetric, zero = 2^(bits-1); bytes, maybe unaligned */
    bool zeros_are_v1;
    struct tensor scales;
    /* Act-order: perm[i] = the original input row at place i when rows are sorted by group (stable);
     * NULL when g_idx is the trivial order. malloc'd, owned by this struct. */
    int32_t *perm;
    /* g_idx where groups are not group_size rows each (then no permutation helps): NULL as a rule;
     * else the group of each input, borrowed from the checkpoint, and the caller must dequantise. */
    const uint8_t *irregular_g_idx;
    unsigned notes; /* GPTQ_NOTE_ bits */
};

/* Check shapes, types, ranges (every g_idx < groups, scales finite). Errors and warnings name the
 * module. With log NULL the caller reports from `notes` (one line for 30,000 experts, not 30,000).
 * name is borrowed. On OK the caller releases with gptq_matrix_release(). */
enum status gptq_matrix_init(struct gptq_matrix *out, const char *name,
                             const struct gptq_settings *settings, const struct gptq_tensors *t,
                             const struct log *log, struct error *err);
void gptq_matrix_release(struct gptq_matrix *m);

/* Unpack output rows [row0, row1): q [rows][n_in] one byte per value, in permuted order when perm
 * is set (plain order when irregular); zeros [rows][n_groups] one byte per group (effective, after
 * the v1 correction; 0..2^bits), NULL allowed when symmetric; scales [rows][n_groups] f32. */
void gptq_unpack(const struct gptq_matrix *m, size_t row0, size_t row1, uint8_t *q, uint8_t *zeros,
                 float *scales);

/* The plain float32 matrix rows [row0, row1) x [n_in], original input order. The reference. */
void gptq_dequantise(const struct gptq_matrix *m, size_t row0, size_t row1, float *out);

#endif
