/* bench_quality.h - what the faster settings cost in answers.
 *
 * Place:  cli; `spillway bench --quality`. The same model is opened with one setting after the other, and
 *         every one predicts the same tokens. The first, float32 activations over unquantised dense
 *         matrices, is the reference: its log probabilities are kept in memory.
 * Numbers: mean loss per token; Kullback-Leibler divergence of the reference from the setting, in nats per
 *         token; share of tokens with the same most likely continuation. */
#ifndef CLI_BENCH_QUALITY_H
#define CLI_BENCH_QUALITY_H

#include <stdio.h>

#include "base/buf.h"
#include "base/progress.h"
#include "cli/model_setup.h"

enum { QUALITY_SETTINGS_MAX = 8 };

struct quality_source { /* text and rows NULL: golden.json of the model's folder */
    const char *text, *rows;
    size_t n_tokens_max; /* 0: 4096, fewer where the vocabulary is large */
};

struct quality_row {
    const char *activations, *dense_quant; /* as flags; static */
    double loss, divergence, same_best;
    double tok_s;
};

struct quality_report {
    size_t n_tokens, n_sequences, vocab;
    double recorded_loss;                          /* of golden.json, all of it; 0: there is none */
    struct quality_row rows[QUALITY_SETTINGS_MAX]; /* the first is the reference */
    size_t n_rows;
};

/* Flags of the model other than types and quantisation are kept. */
enum status quality_measure(struct quality_report *out, const struct model_flags *flags,
                            const struct quality_source *source, const struct log *log,
                            struct progress *progress, struct error *err);

void quality_print(FILE *out, const struct quality_report *r);
void quality_json(struct buf *out, const struct quality_report *r); /* see buf_ok() */

/* For tests: the divergence sum_i p_i (log p_i - log q_i) where log_p are log probabilities and logits any
 * numbers that q is the softmax of. */
double quality_divergence(const float *log_p, const float *logits, size_t n);

#endif
