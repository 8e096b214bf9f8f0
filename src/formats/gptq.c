/* gptq.c - checking the tensors of one GPTQ linear.
 *
 * Place:  formats; see gptq.h. Metadata is gptq_config.c, unpacking gptq_unpack.c.
 * Layout: qweight [in*bits/32][out] u32, inputs packed along the word from the low bits up;
 *         qzeros [groups][out*bits/32] u32, outputs packed likewise; W = (q - zero) * scale.
 * Idea:   everything that can be wrong is found here, once, so that unpacking cannot fail. Where file
 *         and metadata disagree the file wins and a note says so. */
#include "formats/gptq.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "formats/model_config.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed words are read as they lie");

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

const char *gptq_note_text(unsigned note)
{
    switch (note) {
    case GPTQ_NOTE_NOT_EXPECTED:
        return "the quantisation settings leave it out, but it has a qweight: read as quantised";
    case GPTQ_NOTE_OTHER_ZEROS:
        return "symmetric zero points are stored in the other convention than declared: read right";
    case GPTQ_NOTE_ASYMMETRIC:
        return "marked symmetric, but its zero points are not: read as asymmetric";
    case GPTQ_NOTE_FLOODED:
        return "zero points with all upper fields set: perhaps damaged by an old packing fault";
    case GPTQ_NOTE_ORDERED:
        return "desc_act is false, but g_idx is permuted: g_idx is applied";
    default:
        return "unknown";
    }
}

/* ---- shapes ---- */

static enum status check_tensor(const struct tensor *t, const char *what, size_t rows, size_t cols,
                                struct error *err)
{
    if (t->dtype != DTYPE_I32 && t->dtype != DTYPE_U32) {
        return error_set(err, ERR_FORMAT, "'%s' is of type %s, not int32", what,
                         dtype_name(t->dtype));
    }
    if (t->n_dims != 2 || t->shape[0] != rows || t->shape[1] != cols) {
        return error_set(err, ERR_FORMAT,
                         "'%s' has the shape [%zu, %zu] (%zu dimensions), not [%zu, %zu]", what,
                         t->n_dims > 0 ? t->shape[0] : 0, t->n_dims > 1 ? t->shape[1] : 0,
                         t->n_dims, rows, cols);
    }
    return OK;
}

static enum status check_qweight(struct gptq_matrix *m, const struct tensor *t, struct error *err)
{
    size_t per_word = 32 / m->bits;

    if (!t->data) {
        return error_set(err, ERR_FORMAT, "'qweight' is missing");
    }
    if (t->n_dims != 2 || t->shape[0] == 0 || t->shape[1] == 0 ||
        t->shape[0] > CONFIG_DIM_MAX / per_word || t->shape[1] > CONFIG_DIM_MAX) {
        return error_set(err, ERR_FORMAT,
                         "'qweight' is not a matrix of at most %d inputs and %d outputs",
                         CONFIG_DIM_MAX, CONFIG_DIM_MAX);
    }
    m->n_in = t->shape[0] * per_word;
    m->n_out = t->shape[1];
    m->qweight = t->data;
    return check_tensor(t, "qweight", t->shape[0], t->shape[1], err);
}

static bool is_finite_bits(enum dtype t, const uint8_t *p)
{
    uint16_t h;

    if (t == DTYPE_F32) {
        return (load_u32(p) & 0x7f800000u) != 0x7f800000u;
    }
    memcpy(&h, p, sizeof h);
    return t == DTYPE_F16 ? (h & 0x7c00u) != 0x7c00u : (h & 0x7f80u) != 0x7f80u;
}

static enum status check_scales(struct gptq_matrix *m, const struct tensor *t, struct error *err)
{
    const uint8_t *p = t->data;
    size_t n = m->n_groups * m->n_out;

    if (!p) {
        return error_set(err, ERR_FORMAT, "'scales' is missing");
    }
    if (t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F32) {
        return error_set(err, ERR_FORMAT,
                         "'scales' is of type %s, not float16, bfloat16 or float32",
                         dtype_name(t->dtype));
    }
    if (t->n_dims != 2 || t->shape[0] != m->n_groups || t->shape[1] != m->n_out) {
        return error_set(err, ERR_FORMAT,
                         "'scales' has the shape [%zu, %zu] (%zu dimensions), not [%zu, %zu] "
                         "(%zu inputs in groups of %zu, %zu outputs)",
                         t->n_dims > 0 ? t->shape[0] : 0, t->n_dims > 1 ? t->shape[1] : 0,
                         t->n_dims, m->n_groups, m->n_out, m->n_in, m->group_size, m->n_out);
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_finite_bits(t->dtype, p + i * dtype_bytes(t->dtype))) {
            return error_set(err, ERR_FORMAT, "'scales' [%zu, %zu] is not finite", i / m->n_out,
                             i % m->n_out);
        }
    }
    m->scales = *t;
    return OK;
}

/* ---- zero points ---- */

struct zero_facts {
    bool all_v1;      /* every word holds 2^(bits-1) - 1 in each field */
    bool all_v2;      /* every word holds 2^(bits-1) in each field */
    bool top_flooded; /* some word has its two highest fields all ones */
};

static struct zero_facts look_at_zeros(const uint8_t *p, size_t n_words, unsigned bits)
{
    uint32_t v1 = bits == 4 ? 0x77777777u : 0x7f7f7f7fu, v2 = bits == 4 ? 0x88888888u : 0x80808080u;
    uint32_t top = bits == 4 ? 0xff000000u : 0xffff0000u;
    struct zero_facts f = {true, true, false};

    for (size_t i = 0; i < n_words; i++) {
        uint32_t w = load_u32(p + 4 * i);

        f.all_v1 = f.all_v1 && w == v1;
        f.all_v2 = f.all_v2 && w == v2;
        f.top_flooded = f.top_flooded || (w & top) == top;
    }
    return f;
}

static enum status check_zeros(struct gptq_matrix *m, const struct gptq_settings *s,
                               const struct tensor *t, struct error *err)
{
    size_t n_words = (m->n_out * m->bits + 31) / 32;
    struct zero_facts facts;
    enum status rc;

    if (!t->data) {
        return s->is_symmetric
                   ? OK
                   : error_set(err, ERR_FORMAT,
                               "'qzeros' is missing, and the settings are not symmetric");
    }
    rc = check_tensor(t, "qzeros", m->n_groups, n_words, err);
    if (rc != OK) {
        return rc;
    }
    facts = look_at_zeros(t->data, m->n_groups * n_words, m->bits);
    if (s->is_symmetric && (facts.all_v1 || facts.all_v2)) {
        if (facts.all_v1 ? s->is_v2 : !s->is_v2) {
            m->notes |= GPTQ_NOTE_OTHER_ZEROS;
        }
        return OK;
    }
    if (s->is_symmetric) {
        m->notes |= GPTQ_NOTE_ASYMMETRIC;
    }
    if (!s->is_v2 && facts.top_flooded) {
        m->notes |= GPTQ_NOTE_FLOODED;
    }
    m->qzeros = t->data;
    m->zeros_are_v1 = !s->is_v2;
    return OK;
}

/* ---- act-order ---- */

/* Stable counting sort of the inputs by group; counts [n_groups] ends as the group's end. */
static void sort_by_group(int32_t *perm, size_t *counts, const struct gptq_matrix *m,
                          const uint8_t *g_idx)
{
    size_t at = 0;

    for (size_t g = 0; g < m->n_groups; g++) {
        size_t n = counts[g];

        counts[g] = at;
        at += n;
    }
    for (size_t k = 0; k < m->n_in; k++) {
        perm[counts[load_u32(g_idx + 4 * k)]++] = (int32_t)k;
    }
}

static bool groups_are_regular(const struct gptq_matrix *m, const size_t *counts)
{
    for (size_t g = 0; g < m->n_groups; g++) {
        if (counts[g] != size_min(m->group_size, m->n_in - g * m->group_size)) {
            return false;
        }
    }
    return true;
}

/* g_idx is in range and not the trivial order. */
static enum status apply_order(struct gptq_matrix *m, const uint8_t *g_idx, struct error *err)
{
    size_t *counts = calloc(m->n_groups, sizeof *counts);

    if (!counts) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the counts of %zu groups",
                         m->n_groups);
    }
    for (size_t k = 0; k < m->n_in; k++) {
        counts[load_u32(g_idx + 4 * k)]++;
    }
    if (!groups_are_regular(m, counts)) {
        m->irregular_g_idx = g_idx;
    } else {
        m->perm = malloc(m->n_in * sizeof *m->perm);
        if (!m->perm) {
            free(counts);
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the order of %zu inputs",
                             m->n_in);
        }
        sort_by_group(m->perm, counts, m, g_idx);
    }
    free(counts);
    return OK;
}

static enum status check_g_idx(struct gptq_matrix *m, const struct gptq_settings *s,
                               const struct tensor *t, struct error *err)
{
    const uint8_t *p = t->data;
    bool is_trivial = true;

    if (!p) {
        if (s->has_desc_act && m->n_groups > 1) {
            return error_set(err, ERR_FORMAT, "'g_idx' is missing, and the settings say desc_act");
        }
        return OK;
    }
    if ((t->dtype != DTYPE_I32 && t->dtype != DTYPE_U32) || t->n_dims != 1 ||
        t->shape[0] != m->n_in) {
        return error_set(err, ERR_FORMAT,
                         "'g_idx' is not a list of %zu int32 numbers, one for each input", m->n_in);
    }
    for (size_t k = 0; k < m->n_in; k++) {
        uint32_t g = load_u32(p + 4 * k);

        if (g >= m->n_groups) { /* negative numbers are large here */
            return error_set(err, ERR_FORMAT, "'g_idx' [%zu] is %d, but there are %zu groups", k,
                             (int)g, m->n_groups);
        }
        is_trivial = is_trivial && g == k / m->group_size;
    }
    if (is_trivial) {
        return OK;
    }
    if (!s->has_desc_act) {
        m->notes |= GPTQ_NOTE_ORDERED;
    }
    return apply_order(m, p, err);
}

/* ---- entry points ---- */

static enum status check_all(struct gptq_matrix *m, const struct gptq_settings *s,
                             const struct gptq_tensors *t, struct error *err)
{
    enum status rc = check_qweight(m, &t->qweight, err);

    if (rc != OK) {
        return rc;
    }
    m->group_size = s->group_size < 0 ? m->n_in : size_min((size_t)s->group_size, m->n_in);
    m->n_groups = (m->n_in + m->group_size - 1) / m->group_size;
    rc = check_scales(m, &t->scales, err);
    if (rc == OK) {
        rc = check_zeros(m, s, &t->qzeros, err);
    }
    if (rc == OK) {
        rc = check_g_idx(m, s, &t->g_idx, err);
    }
    if (!s->is_quantised) {
        m->notes |= GPTQ_NOTE_NOT_EXPECTED;
    }
    return rc;
}

enum status gptq_matrix_init(struct gptq_matrix *out, const char *name,
                             const struct gptq_settings *settings, const struct gptq_tensors *t,
                             const struct log *log, struct error *err)
{
    enum status rc;

    assert(settings->bits == 4 || settings->bits == 8);
    assert(settings->group_size == -1 || settings->group_size > 0);
    memset(out, 0, sizeof *out);
    out->name = name;
    out->bits = settings->bits;
    rc = check_all(out, settings, t, err);
    if (rc != OK) {
        error_prefix(err, "module '%s'", name);
        gptq_matrix_release(out);
        return rc;
    }
    for (unsigned i = 0; i < GPTQ_NOTE_COUNT; i++) {
        if (out->notes & 1u << i) {
            log_warning(log, "module '%s': %s", name, gptq_note_text(1u << i));
        }
    }
    return OK;
}

void gptq_matrix_release(struct gptq_matrix *m)
{
    free(m->perm);
    memset(m, 0, sizeof *m);
}
