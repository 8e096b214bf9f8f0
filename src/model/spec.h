/* spec.h - a model as data: layers of residual branches of blocks, and the weights they name.
 *
 * Place:  model. A family reader (families/) turns config.json into one of these; the loader fills
 *         its slots, the op plan walks its blocks. Neither of them knows a family's name, and a
 *         family made of these blocks is one new file in families/.
 *
 *     model   embed -> layers[] -> final norm -> head
 *     layer   branches, run in order, each:   x = x + sum_j block_j(norm(x))
 *     block   gated delta net | attention | dense FFN | mixture of experts
 *
 * Slots:  a block does not hold weights but numbers of slots: places in two flat tables that say
 *         where in the checkpoint a matrix or a vector is and in which form it is wanted. So binding
 *         is one loop over the tables, whatever the blocks are. */
#ifndef MODEL_SPEC_H
#define MODEL_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "formats/model_config.h"

enum {
    SPEC_BRANCHES_MAX = 2,
    SPEC_BLOCKS_MAX = 2,
    SPEC_SLOTS_MAX = 1 << 20, /* matrices; the largest published models need about 100,000 */
    SPEC_BYTES_MAX = 1 << 28, /* names and row maps; twenty times the largest published need */
    SPEC_NAME_BYTES = 256
};

/* What a matrix is for: the rows of the dtype table. */
enum weight_class {
    CLASS_EMBEDDING,
    CLASS_HEAD,
    CLASS_LINEAR_ATTENTION,
    CLASS_ATTENTION,
    CLASS_DENSE,
    CLASS_ROUTER,
    CLASS_EXPERT,
    CLASS_SHARED_EXPERT,
    CLASS_COUNT
};
const char *weight_class_name(enum weight_class c);

/* A matrix [n_out][n_in] and where it is found. name is below the checkpoint's prefix and without
 * ".weight"; content decides whether it is plain (name.weight) or quantised (name.qweight ...). */
struct spec_matrix {
    const char *name;
    enum weight_class weight_class;
    size_t n_out, n_in;
    bool at_root;        /* the name stands before the prefix (lm_head) */
    bool must_be_dense;  /* no kernel reads it quantised: the embedding, the router */
    const int32_t *rows; /* row i is the checkpoint's row rows[i]; NULL: the same order */
    size_t n_file_rows;  /* rows of the checkpoint's matrix; n_out when rows is NULL */
    /* The other form: a stack [stack_n][stack_rows][n_in] named `stack` without suffix, of which
     * this is rows [stack_row0, +n_out) of entry stack_idx. NULL: there is no such form. */
    const char *stack;
    size_t stack_n, stack_rows, stack_idx, stack_row0;
};

/* Small float tensors, wanted as float32 in one of these forms. */
enum vector_form {
    VECTOR_PLAIN,
    VECTOR_ONE_PLUS, /* 1 + w, of zero-centred norms */
    VECTOR_NEG_EXP,  /* -exp(w), of A_log */
    VECTOR_CONV      /* stored [channels][1][taps], wanted [taps][channels] */
};
struct spec_vector {
    const char *name; /* below the prefix, complete */
    enum vector_form form;
    size_t n;    /* elements; VECTOR_CONV: channels */
    size_t taps; /* VECTOR_CONV only */
};

/* Numbers of slots. SLOT_NONE: the block goes without. */
typedef int32_t matrix_slot;
typedef int32_t vector_slot;
enum { SLOT_NONE = -1 };

struct gdn_spec {
    size_t nk, nv, dk, dv, taps;
    matrix_slot qkv, z, a, b, out;
    vector_slot conv, neg_exp_a, dt_bias, norm;
    size_t gdn_layer; /* its number among the GDN blocks: the place of its state */
};

struct rope_spec {
    size_t dims; /* rotated dimensions of a head, even */
    struct rope_config config;
};

struct attention_spec {
    size_t nq, nkv, hd;
    bool is_gated; /* sigmoid gate per element, its rows follow each head's query rows */
    float scale;
    struct rope_spec rope;
    matrix_slot q, k, v, out;
    vector_slot q_norm, k_norm;
    size_t attn_layer;
};

struct dense_spec { /* down(silu(gate x) * up x) */
    size_t width;
    matrix_slot gate, up, down;
};

struct moe_spec { /* softmax router, top k, optional shared expert behind a sigmoid gate */
    size_t n_experts, top_k, width;
    bool renormalise;
    matrix_slot router;
    matrix_slot expert0;      /* expert e has slots expert0 + 3e: gate, up, down */
    struct dense_spec shared; /* width 0: none */
    matrix_slot shared_gate;
};

enum block_kind { BLOCK_GDN, BLOCK_ATTENTION, BLOCK_DENSE, BLOCK_MOE };

struct block_spec {
    enum block_kind kind;
    union {
        struct gdn_spec gdn;
        struct attention_spec attention;
        struct dense_spec dense;
        struct moe_spec moe;
    } u;
};

struct branch_spec {
    vector_slot norm; /* one norm for all blocks of the branch */
    size_t n_blocks;
    struct block_spec blocks[SPEC_BLOCKS_MAX];
};

struct layer_spec {
    size_t n_branches;
    struct branch_spec branches[SPEC_BRANCHES_MAX];
};

/* Tensors that may be in the file and are not for us. A trailing '*' or a leading one stands for
 * anything. */
struct spec_skip {
    const char *pattern;
    const char *label; /* "vision" */
};

struct model_spec {
    struct arena arena; /* holds everything below */
    const char *family;
    size_t hidden, vocab, n_layers;
    float eps;
    struct layer_spec *layers;
    matrix_slot embed, head; /* head == embed when tied */
    vector_slot final_norm;

    struct spec_matrix *matrices;
    size_t n_matrices, matrices_max;
    struct spec_vector *vectors;
    size_t n_vectors, vectors_max;
    size_t n_gdn_layers, n_attn_layers;
    bool failed; /* a slot could not be added */

    const char *anchor;           /* module whose place tells the prefix, "embed_tokens" */
    const char *const *prefixes;  /* NULL-terminated, tried in order; exactly one must fit */
    const struct spec_skip *skip; /* ends with a NULL pattern */
};

/* A family: which configurations it reads, and how. build() finds a spec with the sizes of the
 * configuration set, the slot tables empty and the layers zeroed. */
struct model_family_reader {
    enum model_family family;
    const char *name;
    enum status (*build)(struct model_spec *spec, const struct model_config *c, struct error *err);
};

/* *out is released with model_spec_release, also after a failure. */
enum status model_spec_build(struct model_spec *out, const struct model_config *c,
                             struct error *err);
void model_spec_release(struct model_spec *spec);

/* For family readers: a new slot; the name is formatted. A failure (arena or table full) is sticky:
 * the slot is SLOT_NONE and model_spec_build reports it. */
matrix_slot spec_matrix_add(struct model_spec *spec, const struct spec_matrix *m, const char *fmt,
                            ...) __attribute__((format(printf, 3, 4)));
vector_slot spec_vector_add(struct model_spec *spec, enum vector_form form, size_t n, size_t taps,
                            const char *fmt, ...) __attribute__((format(printf, 5, 6)));
const char *spec_name(struct model_spec *spec, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The rotary frequencies of a head, [dims/2], and the factor on cos and sin (1 without yarn). */
void rope_frequencies(float *inv_freq, float *scale, const struct rope_spec *rope);

#endif
