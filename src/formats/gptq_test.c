/* gptq_test.c - tests of checking and unpacking GPTQ linears.
 *
 * A builder packs known numbers in every layout that the format knows; what comes back must be those
 * numbers, exactly: products of small integers and scales round once, so there is no tolerance. The
 * tensors lie at odd addresses, as they may in a file. */
#include "formats/test_dir.h"

#include "base/half.h"
#include "formats/checkpoint.h"
#include "formats/gptq.h"

enum { IN = 256, OUT = 24, GROUPS_MAX = 16 };

enum order { ORDER_NONE, ORDER_TRIVIAL, ORDER_PERMUTED, ORDER_IRREGULAR };

struct spec {
    unsigned bits;
    int64_t group_size;
    bool is_v2, is_symmetric;
    enum order order;
    enum dtype scale_type;
};

/* One linear as numbers and as tensors. */
struct linear {
    struct spec spec;
    size_t n_groups, group_size;
    int q[OUT][IN], zero[OUT][GROUPS_MAX]; /* zero: effective */
    float scale[OUT][GROUPS_MAX];
    size_t group[IN];
    struct gptq_settings settings;
    struct gptq_tensors tensors;
    uint8_t qweight[IN * OUT + 4], qzeros[GROUPS_MAX * OUT + 4], scales[GROUPS_MAX * OUT * 4 + 4],
        g_idx[IN * 4 + 4];
};

static void put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static void choose_order(struct linear *l, uint64_t *seed)
{
    for (size_t k = 0; k < IN; k++) {
        l->group[k] = k / l->group_size;
    }
    if (l->spec.order == ORDER_PERMUTED || l->spec.order == ORDER_IRREGULAR) {
        for (size_t k = IN - 1; k > 0; k--) {
            size_t other = (size_t)(test_random(seed) % (k + 1)), kept = l->group[k];

            l->group[k] = l->group[other];
            l->group[other] = kept;
        }
    }
    if (l->spec.order == ORDER_IRREGULAR) {
        l->group[0] = (l->group[0] + 1) % l->n_groups; /* one input too many in a group */
    }
}

/* The packed forms of the numbers in l. */
static void pack(struct linear *l)
{
    size_t per_word = 32 / l->spec.bits, zero_words = OUT / per_word;
    uint8_t *qweight = l->qweight + 1, *qzeros = l->qzeros + 3, *scales = l->scales + 1,
            *g_idx = l->g_idx + 1;

    for (size_t r = 0; r < IN / per_word; r++) {
        for (size_t n = 0; n < OUT; n++) {
            uint32_t word = 0;

            for (size_t j = 0; j < per_word; j++) {
                word |= (uint32_t)l->q[n][r * per_word + j] << (l->spec.bits * j);
            }
            put_u32(qweight + 4 * (r * OUT + n), word);
        }
    }
    for (size_t g = 0; g < l->n_groups; g++) {
        for (size_t c = 0; c < zero_words; c++) {
            uint32_t word = 0;

            for (size_t j = 0; j < per_word; j++) {
                word |= (uint32_t)l->zero[c * per_word + j][g] << (l->spec.bits * j);
            }
            if (!l->spec.is_v2) {
                word -= l->spec.bits == 4 ? 0x11111111u : 0x01010101u;
            }
            put_u32(qzeros + 4 * (g * zero_words + c), word);
        }
        for (size_t n = 0; n < OUT; n++) {
            dtype_store(l->spec.scale_type, scales, g * OUT + n, l->scale[n][g]);
        }
    }
    for (size_t k = 0; k < IN; k++) {
        put_u32(g_idx + 4 * k, (uint32_t)l->group[k]);
    }
    l->tensors.qweight = (struct tensor){qweight, DTYPE_I32, 2, {IN / per_word, OUT}};
    l->tensors.qzeros = (struct tensor){qzeros, DTYPE_I32, 2, {l->n_groups, zero_words}};
    l->tensors.scales = (struct tensor){scales, l->spec.scale_type, 2, {l->n_groups, OUT}};
    l->tensors.g_idx =
        (struct tensor){l->spec.order == ORDER_NONE ? NULL : g_idx, DTYPE_I32, 1, {IN}};
}

/* The same real matrix for every spec of one seed: small integers v (|v| <= 5) times a scale per
 * column. Symmetric or not, 4 or 8 bits, whatever the groups: q = v + zero. */
static void make_same_matrix(struct linear *l, const struct spec *spec)
{
    uint64_t seed = 11, zeros = 5;
    int middle = 1 << (spec->bits - 1);

    memset(l, 0, sizeof *l);
    l->spec = *spec;
    l->group_size = spec->group_size < 0 ? IN : (size_t)spec->group_size;
    l->n_groups = IN / l->group_size;
    choose_order(l, &zeros);
    for (size_t n = 0; n < OUT; n++) {
        float scale = (float)(128 + test_random(&seed) % 128) / 65536.0f; /* exact in bf16 */

        for (size_t g = 0; g < l->n_groups; g++) {
            int wide = 5 + (int)(test_random(&zeros) % (spec->bits == 4 ? 6 : 246));

            l->scale[n][g] = scale;
            l->zero[n][g] = spec->is_symmetric ? middle : wide;
        }
        for (size_t k = 0; k < IN; k++) {
            l->q[n][k] = (int)(test_random(&seed) % 11) - 5 + l->zero[n][l->group[k]];
        }
    }
    l->settings = (struct gptq_settings){spec->bits,         spec->group_size,
                                         spec->is_symmetric, spec->order == ORDER_PERMUTED,
                                         spec->is_v2,        true};
    pack(l);
}

static float expected(const struct linear *l, size_t n, size_t k)
{
    size_t g = l->group[k];

    return (float)((double)(l->q[n][k] - l->zero[n][g]) * (double)l->scale[n][g]);
}

/* Both ways out of a matrix against the numbers, whole and in parts. */
static void check_values(const struct linear *l, const struct gptq_matrix *m)
{
    static const size_t spans[][2] = {{0, OUT}, {0, 1}, {5, 22}, {23, 24}, {7, 7}};
    static float w[OUT * IN], scales[OUT * GROUPS_MAX];
    static uint8_t q[OUT * IN], zeros[OUT * GROUPS_MAX];

    for (size_t s = 0; s < sizeof spans / sizeof spans[0]; s++) {
        size_t row0 = spans[s][0], row1 = spans[s][1];

        gptq_dequantise(m, row0, row1, w);
        gptq_unpack(m, row0, row1, q, zeros, scales);
        for (size_t n = row0; n < row1; n++) {
            for (size_t i = 0; i < IN; i++) {
                size_t at = n - row0, k = m->perm ? (size_t)m->perm[i] : i;
                size_t g = m->irregular_g_idx ? l->group[k] : i / m->group_size;
                int v = (int)q[at * IN + i] - (int)zeros[at * m->n_groups + g];

                assert_true(w[at * IN + i] == expected(l, n, i));
                assert_true((float)v * scales[at * m->n_groups + g] == expected(l, n, k));
            }
        }
    }
}

static void test_same_matrix_in_every_form(void **state)
{
    static const int64_t groups[] = {-1, 16, 32, 64, 128};
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    static struct linear first, l;
    size_t n_forms = 0;

    (void)state;
    make_same_matrix(&first, &(struct spec){4, 64, false, true, ORDER_NONE, DTYPE_F16});
    for (unsigned form = 0; form < 2 * 5 * 2 * 2 * 3 * 3; form++) {
        unsigned f = form;
        struct spec spec;
        struct gptq_matrix m;
        struct error err = {0};
        struct test_dir d;

        spec.bits = f % 2 ? 8 : 4;
        spec.group_size = groups[(f /= 2) % 5];
        spec.is_v2 = (f /= 5) % 2;
        spec.is_symmetric = (f /= 2) % 2;
        spec.order = (enum order)((f /= 2) % 3);
        spec.scale_type = types[(f /= 3) % 3];
        make_same_matrix(&l, &spec);
        test_dir_open(&d);
        if (gptq_matrix_init(&m, "m", &l.settings, &l.tensors, &d.log, &err) != OK) {
            fail_msg("form %u: %s", form, err.text);
        }
        assert_false(test_log_has(&d, "m"));
        assert_int_equal(m.notes, 0);
        assert_int_equal(m.perm != NULL, spec.order == ORDER_PERMUTED && l.n_groups > 1);
        assert_null(m.irregular_g_idx);
        assert_int_equal(m.qzeros == NULL, spec.is_symmetric);
        check_values(&l, &m);
        for (size_t n = 0; n < OUT; n++) {
            for (size_t k = 0; k < IN; k++) {
                assert_true(expected(&l, n, k) == expected(&first, n, k));
            }
        }
        gptq_matrix_release(&m);
        gptq_matrix_release(&m);
        test_dir_close(&d);
        n_forms++;
    }
    assert_int_equal(n_forms, 360);
}

/* All numbers random: full ranges, a scale for each group, every order, zeros of 0 next to others (so
 * that v1 borrows run across fields). */
static void make_random(struct linear *l, const struct spec *spec, uint64_t *seed)
{
    uint64_t range = 1u << spec->bits;

    make_same_matrix(l, spec);
    choose_order(l, seed);
    for (size_t n = 0; n < OUT; n++) {
        for (size_t g = 0; g < l->n_groups; g++) {
            uint64_t r = test_random(seed);

            l->zero[n][g] = r % 3 ? (int)(r / 3 % range) : 0;
            l->scale[n][g] =
                dtype_round(spec->scale_type, ((float)(test_random(seed) % 2000) - 1000) / 9999.0f);
        }
        for (size_t k = 0; k < IN; k++) {
            l->q[n][k] = (int)(test_random(seed) % range);
        }
    }
    l->settings.has_desc_act = spec->order >= ORDER_PERMUTED;
    pack(l);
}

static void test_random_matrices(void **state)
{
    static struct linear l;
    uint64_t seed = 3;

    (void)state;
    for (unsigned form = 0; form < 2 * 2 * 4 * 3; form++) {
        struct spec spec = {form % 2 ? 8 : 4,
                            form / 16 % 2 ? 64 : 16,
                            form / 2 % 2,
                            false,
                            (enum order)(form / 4 % 4),
                            form / 16 == 0   ? DTYPE_F16
                            : form / 16 == 1 ? DTYPE_BF16
                                             : DTYPE_F32};
        struct gptq_matrix m;
        struct error err = {0};

        make_random(&l, &spec, &seed);
        assert_int_equal(gptq_matrix_init(&m, "m", &l.settings, &l.tensors, NULL, &err), OK);
        assert_int_equal(m.irregular_g_idx != NULL, spec.order == ORDER_IRREGULAR);
        assert_int_equal(m.perm != NULL, spec.order == ORDER_PERMUTED);
        check_values(&l, &m);
        gptq_matrix_release(&m);
    }
}

/* Inputs that are no multiple of the group: the last group is short, also in sorted order. */
static void test_short_last_group(void **state)
{
    enum { SHORT_IN = 40, G = 16 };
    uint32_t qweight[5][1], qzeros[3][1];
    float scales[3][1] = {{1}, {10}, {100}}, w[SHORT_IN];
    int32_t g_idx[SHORT_IN];
    struct gptq_tensors t = {{qweight, DTYPE_I32, 2, {5, 1}},
                             {qzeros, DTYPE_U32, 2, {3, 1}},
                             {scales, DTYPE_F32, 2, {3, 1}},
                             {g_idx, DTYPE_I32, 1, {SHORT_IN}}};
    struct gptq_settings s = {4, G, false, true, true, true};

    (void)state;
    for (int reversed = 0; reversed < 2; reversed++) {
        struct gptq_matrix m;
        struct error err = {0};

        for (size_t i = 0; i < SHORT_IN; i++) { /* reversed: the short group holds inputs 0..7 */
            g_idx[i] = (int32_t)((reversed ? SHORT_IN - 1 - i : i) / G);
        }
        for (size_t r = 0; r < 5; r++) {
            qweight[r][0] = 0x33333333;
        }
        for (size_t g = 0; g < 3; g++) {
            qzeros[g][0] = (uint32_t)g; /* v2: the zero is g */
        }
        assert_int_equal(gptq_matrix_init(&m, "m", &s, &t, NULL, &err), OK);
        assert_int_equal(m.n_groups, 3);
        assert_int_equal(m.perm != NULL, reversed);
        assert_null(m.irregular_g_idx);
        if (reversed) {
            assert_int_equal(m.perm[0], 24);
            assert_int_equal(m.perm[SHORT_IN - 1], 7);
        }
        gptq_dequantise(&m, 0, 1, w);
        for (size_t i = 0; i < SHORT_IN; i++) {
            static const float values[] = {3, 20, 100};

            assert_true(w[i] == values[g_idx[i]]);
        }
        gptq_matrix_release(&m);
    }
}

/* ---- metadata against content ---- */

static void test_symmetric_zero_conventions(void **state)
{
    static const uint32_t words[2][2] = {{0x77777777, 0x88888888}, {0x7f7f7f7f, 0x80808080}};
    static struct linear l;

    (void)state;
    for (unsigned form = 0; form < 8; form++) {
        bool marked_v2 = form & 1, stored_v2 = form & 2;
        unsigned bits = form & 4 ? 8 : 4;
        struct spec spec = {bits, 64, marked_v2, true, ORDER_TRIVIAL, DTYPE_F16};
        struct gptq_matrix m;
        struct error err = {0};
        struct test_dir d;

        make_same_matrix(&l, &spec);
        for (size_t i = 0; i < l.n_groups * OUT * bits / 32; i++) {
            put_u32(l.qzeros + 3 + 4 * i, words[bits == 8][stored_v2]);
        }
        test_dir_open(&d);
        assert_int_equal(gptq_matrix_init(&m, "layer.7", &l.settings, &l.tensors, &d.log, &err),
                         OK);
        assert_int_equal(m.notes, marked_v2 == stored_v2 ? 0 : GPTQ_NOTE_OTHER_ZEROS);
        assert_int_equal(test_log_has(&d, "module 'layer.7': symmetric zero points"),
                         marked_v2 != stored_v2);
        check_values(&l, &m);
        gptq_matrix_release(&m);
        /* without qzeros at all */
        l.tensors.qzeros.data = NULL;
        assert_int_equal(gptq_matrix_init(&m, "m", &l.settings, &l.tensors, NULL, &err), OK);
        check_values(&l, &m);
        gptq_matrix_release(&m);
        test_dir_close(&d);
    }
}

/* Marked symmetric, but the zeros are not: read by the declared format, with a warning. */
static void test_symmetric_file_with_other_zeros(void **state)
{
    static struct linear l;
    uint64_t seed = 99;

    (void)state;
    for (int v2 = 0; v2 < 2; v2++) {
        struct gptq_matrix m;
        struct error err = {0};
        struct test_dir d;

        make_random(&l, &(struct spec){4, 64, v2, false, ORDER_TRIVIAL, DTYPE_F16}, &seed);
        l.settings.is_symmetric = true;
        test_dir_open(&d);
        assert_int_equal(gptq_matrix_init(&m, "x", &l.settings, &l.tensors, &d.log, &err), OK);
        assert_true(m.notes & GPTQ_NOTE_ASYMMETRIC);
        assert_true(test_log_has(&d, "module 'x': marked symmetric"));
        check_values(&l, &m);
        gptq_matrix_release(&m);
        test_dir_close(&d);
    }
}

static void test_other_notes(void **state)
{
    static struct linear l;
    struct gptq_matrix m;
    struct error err = {0};

    (void)state;
    make_same_matrix(&l, &(struct spec){4, 64, false, false, ORDER_PERMUTED, DTYPE_F16});
    l.settings.has_desc_act = false;
    l.settings.is_quantised = false;
    assert_int_equal(gptq_matrix_init(&m, "m", &l.settings, &l.tensors, NULL, &err), OK);
    assert_int_equal(m.notes, GPTQ_NOTE_ORDERED | GPTQ_NOTE_NOT_EXPECTED);
    check_values(&l, &m); /* what the file says is applied */
    gptq_matrix_release(&m);
    /* desc_act with a trivial g_idx is the plain order, without a word */
    make_same_matrix(&l, &(struct spec){4, 64, false, false, ORDER_TRIVIAL, DTYPE_F16});
    l.settings.has_desc_act = true;
    assert_int_equal(gptq_matrix_init(&m, "m", &l.settings, &l.tensors, NULL, &err), OK);
    assert_int_equal(m.notes, 0);
    assert_null(m.perm);
    gptq_matrix_release(&m);
    /* a v1 word whose upper fields are flooded with ones */
    put_u32(l.qzeros + 3, 0xffffff77u);
    assert_int_equal(gptq_matrix_init(&m, "m", &l.settings, &l.tensors, NULL, &err), OK);
    assert_int_equal(m.notes, GPTQ_NOTE_FLOODED);
    gptq_matrix_release(&m);
    for (unsigned i = 0; i < GPTQ_NOTE_COUNT; i++) {
        assert_string_not_equal(gptq_note_text(1u << i), "unknown");
    }
}

/* ---- wrong tensors ---- */

static void expect_refusal(const struct linear *l, const char *says)
{
    struct gptq_matrix m;
    struct error err = {0};

    if (gptq_matrix_init(&m, "layers.3.up_proj", &l->settings, &l->tensors, NULL, &err) == OK) {
        fail_msg("accepted, though '%s' was expected", says);
    }
    assert_int_equal(err.code, ERR_FORMAT);
    assert_null(m.perm);
    test_error_has(&err, "module 'layers.3.up_proj'");
    test_error_has(&err, says);
}

static void test_wrong_tensors(void **state)
{
    static struct linear good, l;
    struct tensor *t;

    (void)state;
    make_same_matrix(&good, &(struct spec){4, 64, false, false, ORDER_PERMUTED, DTYPE_F16});
#define CASE(member, change, says)                                                                 \
    l = good;                                                                                      \
    pack(&l);                                                                                      \
    t = &l.tensors.member;                                                                         \
    change;                                                                                        \
    expect_refusal(&l, says)

    CASE(qweight, t->data = NULL, "'qweight' is missing");
    CASE(qweight, t->dtype = DTYPE_I64, "'qweight' is of type int64");
    CASE(qweight, t->n_dims = 1, "'qweight'");
    CASE(qweight, t->n_dims = 3, "'qweight'");
    CASE(qweight, t->shape[0] = 0, "'qweight'");
    CASE(qweight, t->shape[1] = 0, "'qweight'");
    CASE(qweight, t->shape[0] = SIZE_MAX, "'qweight'");
    CASE(qweight, t->shape[1] = SIZE_MAX, "'qweight'");
    CASE(qweight, t->shape[0] *= 2, "'scales' has the shape [4, 24]"); /* so 8 groups */
    CASE(scales, t->data = NULL, "'scales' is missing");
    CASE(scales, t->dtype = DTYPE_I32, "'scales' is of type int32");
    CASE(scales, t->dtype = DTYPE_F8_E4M3, "'scales' is of type fp8_e4m3");
    CASE(scales, t->shape[0]++, "'scales' has the shape [5, 24] (2 dimensions), not [4, 24]");
    CASE(scales, t->shape[1]--, "'scales' has the shape");
    CASE(scales, t->n_dims = 1, "'scales' has the shape");
    CASE(qzeros, t->data = NULL, "'qzeros' is missing");
    CASE(qzeros, t->dtype = DTYPE_F32, "'qzeros' is of type float32");
    CASE(qzeros, t->shape[0]--, "'qzeros' has the shape [3, 3]");
    CASE(qzeros, t->shape[1]++, "'qzeros' has the shape [4, 4]");
    CASE(g_idx, t->data = NULL, "'g_idx' is missing");
    CASE(g_idx, t->dtype = DTYPE_I64, "'g_idx' is not a list of 256");
    CASE(g_idx, t->shape[0]--, "'g_idx' is not a list of 256");
    CASE(g_idx, t->n_dims = 2, "'g_idx' is not a list of 256");
    CASE(g_idx, put_u32(l.g_idx + 1 + 4 * 200, 4), "'g_idx' [200] is 4, but there are 4 groups");
    CASE(g_idx, put_u32(l.g_idx + 1 + 4 * 200, UINT32_MAX), "'g_idx' [200] is -1");
    CASE(g_idx, put_u32(l.g_idx + 1, 0x80000000u), "'g_idx' [0] is -2147483648");
#undef CASE
}

static void test_scales_must_be_finite(void **state)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    static struct linear l;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        make_same_matrix(&l, &(struct spec){8, 128, true, true, ORDER_NONE, types[i]});
        dtype_store(types[i], l.scales + 1, OUT + 3, f32_from_bits(0x7f800000));
        expect_refusal(&l, "'scales' [1, 3] is not finite");
        dtype_store(types[i], l.scales + 1, OUT + 3, f32_from_bits(0x7fc00000));
        expect_refusal(&l, "'scales' [1, 3] is not finite");
        dtype_store(types[i], l.scales + 1, OUT + 3, 65504.0f);
        assert_int_equal(
            gptq_matrix_init(&(struct gptq_matrix){0}, "m", &l.settings, &l.tensors, NULL, NULL),
            OK);
    }
}

/* ---- the checkpoints of the repository ---- */

static struct tensor part(const struct checkpoint *c, const char *module, const char *suffix)
{
    char name[512];
    const struct checkpoint_tensor *t;

    snprintf(name, sizeof name, "%s.%s", module, suffix);
    t = checkpoint_find(c, name);
    return t ? t->tensor : (struct tensor){0};
}

static uint32_t word_at(const struct tensor *t, size_t row, size_t col)
{
    uint32_t v;

    memcpy(&v, (const uint8_t *)t->data + 4 * (row * t->shape[1] + col), 4);
    return v;
}

/* The definition, read off the file directly: 4 bits, v1. */
static double by_definition(const struct gptq_tensors *t, size_t n, size_t k)
{
    uint32_t g, q = word_at(&t->qweight, k / 8, n) >> (4 * (k % 8)) & 15, zero;

    memcpy(&g, (const uint8_t *)t->g_idx.data + 4 * k, 4);
    zero = (word_at(&t->qzeros, g, n / 8) + 0x11111111u) >> (4 * (n % 8)) & 15;
    return ((double)q - (double)zero) *
           (double)dtype_load(t->scales.dtype, t->scales.data, g * t->qweight.shape[1] + n);
}

static size_t check_checkpoint(const char *path, size_t *n_permuted)
{
    struct error err = {0};
    struct checkpoint *c;
    struct gptq_config *config;
    size_t n_modules = 0;

    assert_int_equal(checkpoint_open(&c, path, NULL, NULL, &err), OK);
    assert_int_equal(gptq_config_new(&config, checkpoint_quantization(c), &err), OK);
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const char *name = checkpoint_at(c, i)->name, *dot = strrchr(name, '.');
        char module[512];
        struct gptq_settings s;
        struct gptq_tensors t;
        struct gptq_matrix m;
        float *w, absmax = 0;

        if (!dot || strcmp(dot, ".qweight") != 0) {
            continue;
        }
        snprintf(module, sizeof module, "%.*s", (int)(dot - name), name);
        assert_int_equal(gptq_config_for(&s, config, module, &err), OK);
        assert_true(s.is_quantised);
        t = (struct gptq_tensors){part(c, module, "qweight"), part(c, module, "qzeros"),
                                  part(c, module, "scales"), part(c, module, "g_idx")};
        if (gptq_matrix_init(&m, module, &s, &t, NULL, &err) != OK) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(m.notes & ~(unsigned)GPTQ_NOTE_FLOODED, 0);
        assert_null(m.irregular_g_idx);
        *n_permuted += m.perm != NULL;
        w = malloc(m.n_out * m.n_in * sizeof *w);
        assert_non_null(w);
        gptq_dequantise(&m, 0, m.n_out, w);
        for (size_t at = 0; at < m.n_out * m.n_in; at++) {
            assert_true(w[at] == (float)by_definition(&t, at / m.n_in, at % m.n_in));
            absmax = w[at] > absmax ? w[at] : absmax;
        }
        assert_true(absmax > 0.001f && absmax < 4.0f); /* it looks like a weight */
        free(w);
        gptq_matrix_release(&m);
        n_modules++;
    }
    gptq_config_free(config);
    checkpoint_close(c);
    return n_modules;
}

static void test_real_checkpoints(void **state)
{
    size_t n_permuted = 0;

    (void)state;
    assert_int_equal(check_checkpoint(SPILLWAY_SOURCE_DIR
                                      "/tests/golden/tiny-qwen3_5-moe-gptq-int4",
                                      &n_permuted),
                     4 * 8 * 3);
    assert_int_equal(n_permuted, 0);
    assert_true(check_checkpoint(SPILLWAY_SOURCE_DIR
                                 "/tests/golden/tiny-qwen3_5-moe-gptq-int4-actorder",
                                 &n_permuted) > 4 * 8 * 3);
    assert_true(n_permuted > 4 * 8 * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_matrix_in_every_form),
        cmocka_unit_test(test_random_matrices),
        cmocka_unit_test(test_short_last_group),
        cmocka_unit_test(test_symmetric_zero_conventions),
        cmocka_unit_test(test_symmetric_file_with_other_zeros),
        cmocka_unit_test(test_other_notes),
        cmocka_unit_test(test_wrong_tensors),
        cmocka_unit_test(test_scales_must_be_finite),
        cmocka_unit_test(test_real_checkpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
