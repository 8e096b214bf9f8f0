/* weights.h - the slots of a spec, filled from a checkpoint.
 *
 * Place:  model. Strict in both directions: every slot is found, in the right shape, and every tensor
 *         of the checkpoint is used or on the list of those we skip; otherwise loading fails with
 *         the names.
 * Memory: plain matrices stay where they are, in the mapped files. What must change (quantised
 *         matrices, regrouped or misaligned rows, small float vectors) is written into one block;
 *         the routed experts of a layer, when they are quantised alike, into an arena of their own,
 *         one piece per expert (backend/expert_block.h). On a device with its own memory all of it is
 *         moved there: experts layer by layer while they are loaded, through one arena of host memory;
 *         everything else by weights_upload.h. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "backend/expert_block.h"
#include "backend/weight.h"
#include "base/buf.h"
#include "base/file_memory.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "formats/checkpoint.h"
#include "model/spec.h"

struct pool;

enum { WEIGHTS_SKIP_LABELS_MAX = 16, WEIGHTS_NAMES_SHOWN = 8 };

struct weights_skipped {
    const char *label; /* static */
    size_t n_tensors, n_bytes;
};

struct expert_arena {
    struct expert_block block;
    uint8_t
        *base; /* expert e is at base + e * block.n_bytes; NULL: on the device, see the matrices */
    bool passes; /* goes to the device: base is model_weights.passing until then */
    size_t n_experts;
    matrix_slot expert0; /* as in moe_spec: tells whose experts these are */
    bool in_file;        /* base is in model_weights.file: a device cannot read it where it lies */
    /* Of weights_overflow.h: the experts stay in host memory, where the device reads them. */
    bool stays;
    bool
        is_pinned; /* base is ours and pinned by the device; else it is of the device's host_new, */
    bool is_pageable;  /* unless this is set: ours, and could not be pinned; or in_file */
    size_t home_layer; /* 0-based among those that stay */
};

struct model_weights {
    struct weight *matrices; /* [spec->n_matrices]; a tied head is its embedding's slot */
    const float **vectors;   /* [spec->n_vectors] */
    void *block;             /* what was rewritten */
    size_t block_bytes;
    struct expert_arena *arenas; /* one for each layer whose experts are quantised alike */
    size_t n_arenas;
    struct file_memory file;     /* of arenas that stay in one; base NULL: none do */
    uint8_t *passing;            /* while loading: what arenas on their way to the device share */
    const uint8_t **overflowing; /* [those that stay] -> their base */
    bool *pageable;              /* [those that stay] the device cannot read them where they lie */
    /* Of weights_overflow.h: the input embedding, when it stays in host memory; NULL: it is where the
     * other matrices are. */
    uint8_t *embedding;
    bool
        embedding_is_pinned; /* it is ours and pinned by the device; else of the device's host_new */
    uint8_t *int8_block;     /* of dense_quant.h */
    size_t int8_bytes;
    struct backend *be; /* whose memory the device buffers and arenas that stay are */
    void **device_buffers;
    size_t n_device_buffers;
    struct weight tied_head; /* WEIGHT_NONE: the head is matrices[spec->head] */
    size_t n_bytes;          /* all matrices and vectors, mapped or rewritten */
    struct weights_skipped skipped[WEIGHTS_SKIP_LABELS_MAX];
    size_t n_skipped;
};

/* Where arenas of experts shall be. A device without memory of its own reads the host's. */
struct weights_target {
    struct backend *be;
    bool all_stay;     /* in host memory, for weights_overflow.h */
    const bool *stays; /* or [spec->n_layers] whose experts do; NULL: none */
    /* What stays is in a file in this folder, for hosts with little memory; NULL: in memory. */
    const char *folder;
};

/* Borrows ck for as long as the weights live. pool may be NULL (then one thread repacks). *out is
 * released with weights_release, also after a failure. ERR_FORMAT names tensors; ERR_UNSUPPORTED a type
 * without a kernel; ERR_NO_MEMORY the size that did not fit. */
enum status weights_load(struct model_weights *out, const struct model_spec *spec,
                         const struct checkpoint *ck, const struct weights_target *to,
                         struct pool *pool, const struct log *log, struct progress *progress,
                         struct error *err);
void weights_release(struct model_weights *w);

/* n_bytes of be's memory that w keeps until its release. NULL: none left. */
uint8_t *weights_device_buffer(struct model_weights *w, struct backend *be, size_t n_bytes);
/* Writes host memory to it, by the threads of `pool` (or NULL) where the device has a way for that. */
void weights_device_write(struct backend *be, uint8_t *device, const void *host, size_t n_bytes,
                          struct pool *pool);

/* The arena that these experts (moe_spec.expert0) are in; NULL: none. */
struct expert_arena *weights_arena_of(const struct model_weights *w, matrix_slot expert0);

/* What a file of weights_target.folder needs for so many layers with experts of layer_bytes. SIZE_MAX: more
 * than can be addressed. */
size_t weights_file_bytes(size_t n_layers, size_t layer_bytes);

/* Lines for print-outs: matrices and bytes by class and form; what was skipped. */
void weights_print_classes(const struct model_weights *w, const struct model_spec *spec,
                           struct buf *out);
void weights_print_skipped(const struct model_weights *w, struct buf *out);

#endif
