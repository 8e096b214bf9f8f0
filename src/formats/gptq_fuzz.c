/* gptq_fuzz.c - fuzz target: the tensors of one GPTQ linear. The first bytes choose shapes, types and
 * settings, the rest fills the tensors; each tensor is a block of exactly the size that its shape
 * claims, so an overread traps. Both ways of unpacking must agree. */
#include <stdlib.h>
#include <string.h>

#include "formats/gptq.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *p;
    size_t left;
};

static uint8_t next(struct input *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->p++;
}

/* A tensor of small shape; its bytes come from the input, then zeros. */
static struct tensor make(struct input *in, size_t n_dims, size_t rows, size_t cols)
{
    static const enum dtype types[] = {DTYPE_I32, DTYPE_I32, DTYPE_F16, DTYPE_BF16,
                                       DTYPE_F32, DTYPE_U32, DTYPE_I64, DTYPE_U8};
    uint8_t choice = next(in);
    struct tensor t = {NULL, types[choice & 7], n_dims, {rows, cols}};
    size_t n_bytes = rows * (n_dims > 1 ? cols : 1) * dtype_bytes(t.dtype), n;

    if (choice >= 0xf0) {
        return t; /* missing */
    }
    t.data = calloc(n_bytes + 1, 1); /* + 1: never an empty block */
    t.data = t.data ? realloc(t.data, n_bytes ? n_bytes : 1) : NULL;
    n = in->left < n_bytes ? in->left : n_bytes;
    if (t.data && n > 0) {
        memcpy(t.data, in->p, n);
        in->p += n;
        in->left -= n;
    }
    return t;
}

static void unpack_both_ways(const struct gptq_matrix *m)
{
    size_t n = m->n_in * m->n_out, n_meta = m->n_groups * m->n_out;
    uint8_t *q = malloc(n), *zeros = malloc(n_meta);
    float *w = malloc(n * sizeof *w), *scales = malloc(n_meta * sizeof *scales);

    if (q && zeros && w && scales) {
        gptq_dequantise(m, 0, m->n_out, w);
        gptq_unpack(m, 0, m->n_out, q, zeros, scales);
        for (size_t at = 0; at < n && !m->irregular_g_idx; at++) {
            size_t row = at / m->n_in, i = at % m->n_in, g = row * m->n_groups + i / m->group_size;
            size_t k = m->perm ? (size_t)m->perm[i] : i;

            if ((float)((int)q[at] - (int)zeros[g]) * scales[g] != w[row * m->n_in + k]) {
                abort();
            }
        }
    }
    free(q);
    free(zeros);
    free(w);
    free(scales);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct gptq_settings s = {0};
    struct gptq_tensors t;
    struct gptq_matrix m;
    struct error err;
    uint8_t flags = next(&in), words = next(&in) % 16, outs = next(&in) % 40,
            groups = next(&in) % 20;
    size_t per_word;

    s.bits = flags & 1 ? 8 : 4;
    per_word = 32 / s.bits;
    s.group_size = flags & 2 ? -1 : 1 + next(&in) % 70;
    s.is_symmetric = flags & 4;
    s.has_desc_act = flags & 8;
    s.is_v2 = flags & 16;
    s.is_quantised = flags & 32;
    if (!(flags & 64)) { /* as a rule the number of groups is right */
        size_t g = s.group_size < 0 ? (size_t)words * per_word : (size_t)s.group_size;

        groups = (uint8_t)(g ? (words * per_word + g - 1) / g : 0);
    }
    t.qweight = make(&in, flags & 128 ? 1 : 2, words, outs);
    t.qzeros = make(&in, 2, groups, (outs + per_word - 1) / per_word);
    t.scales = make(&in, 2, groups, outs);
    t.g_idx = make(&in, 1, words * per_word, 1);
    if (gptq_matrix_init(&m, "fuzz", &s, &t, NULL, &err) == OK) {
        unpack_both_ways(&m);
        gptq_matrix_release(&m);
    }
    free(t.qweight.data);
    free(t.qzeros.data);
    free(t.scales.data);
    free(t.g_idx.data);
    return 0;
}
