/* split.h - cutting text into the pieces that are encoded one by one.
 *
 * Place:  text, under tokenizer.c.
 * Idea:   the patterns of the model families that we serve are known; for them a scanner written by
 *         hand gives the same cuts several times faster than a regular expression engine, in one
 *         pass. Any other pattern goes through PCRE2. A file may name several patterns: each cuts
 *         the pieces of the one before.
 * Limits: PCRE2 of Debian 12 has the classes of Unicode 14, the reference those of 16; patterns whose
 *         syntax means something else to PCRE2 than to the reference are refused. */
#ifndef TEXT_SPLIT_H
#define TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

enum {
    SPLIT_STAGES_MAX = 8,
    SPLIT_PATTERN_BYTES_MAX = 1 << 16,
    SPLIT_MATCH_STEPS_MAX = 10 * 1000 * 1000, /* of PCRE2, for one match */
    SPLIT_JIT_STACK_BYTES_MAX = 16 << 20
};

enum split_kind {
    SPLIT_PCRE,
    SPLIT_QWEN2,   /* one digit at a time */
    SPLIT_QWEN3_5, /* the same, and combining marks belong to words */
    SPLIT_LLAMA3   /* up to three digits */
};

struct split; /* read-only once its stages are there */

struct split *split_new(void);    /* NULL: out of memory. Without a stage all text is one piece */
void split_free(struct split *s); /* accepts NULL */

/* What becomes of the text between matches. */
enum split_gaps { SPLIT_KEEP_GAPS, SPLIT_DROP_GAPS };

/* Add a stage. ERR_UNSUPPORTED or ERR_FORMAT for a pattern that cannot be used. */
enum status split_add(struct split *s, struct str pattern, enum split_gaps gaps, struct error *err);

size_t split_n_stages(const struct split *s);
enum split_kind split_stage_kind(const struct split *s, size_t i); /* for tests and print-outs */

/* Patterns by kind (not SPLIT_PCRE), and the one that ByteLevel with use_regex stands for. */
struct str split_known_pattern(enum split_kind kind);
struct str split_gpt2_pattern(void);

/* Work memory of one thread; NULL when out of memory. */
struct split_scratch *split_scratch_new(const struct split *s);
void split_scratch_free(struct split_scratch *scratch); /* accepts NULL */

/* Call fn for each piece, in order; pieces are never empty. Stops when fn does not return OK. text is
 * valid UTF-8. ERR_LIMIT when a pattern takes too many steps. */
typedef enum status split_fn(void *ctx, struct str piece, struct error *err);
enum status split_run(const struct split *s, struct split_scratch *scratch, struct str text,
                      split_fn *fn, void *ctx, struct error *err);

#endif
