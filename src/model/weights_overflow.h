/* weights_overflow.h - what stays in host memory, where a device reads it in place: experts that overflow,
 * and with them the input embedding.
 *
 * Place: model; after loading (and dense_quant.h), before weights_upload.h. */
#ifndef MODEL_WEIGHTS_OVERFLOW_H
#define MODEL_WEIGHTS_OVERFLOW_H

#include "backend/backend.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "model/weights.h"
#include "offload/offload.h"

/* Marks the arenas of layers with may_overflow [spec->n_layers] (NULL: of all that have experts), which were
 * loaded to stay (weights_target), and makes their memory reachable for be: pinned where it is, or copied to memory
 * of host_new. From the first layer on for which neither is possible, and where arenas are in a file, they stay as
 * they are, pageable; the former is one line in the log. Fills *shape but for its activations; n_layers is 0 when no
 * layer overflows. shape->blocks and is_pageable are w's.
 * If any does, the embedding stays too, as a copy, where that saves the device its memory
 * (weights_embedding_may_stay): a step reads one row per token, which is little beside experts.
 * ERR_UNSUPPORTED: be cannot, or a layer's experts have no blocks or others than the layers before.
 * ERR_NO_MEMORY: the embedding cannot be pinned; w can only be released then. pool, log and progress may be NULL. */
enum status weights_overflow(struct offload_shape *shape, struct model_weights *w,
                             const struct model_spec *spec, const bool *may_overflow,
                             struct backend *be, struct pool *pool, const struct log *log,
                             struct progress *progress, struct error *err);

/* A plain matrix of a mapped file that no other operation reads. What is in w's block goes to the device with
 * it; a tied head's rows are all read for every token. */
bool weights_embedding_may_stay(const struct model_weights *w, const struct model_spec *spec);

#endif
