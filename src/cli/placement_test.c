/* placement_test.c - the planner from a checkpoint's headers to slots, at the real size of a 35B model.
 *
 * Place: cli, cmocka. The checkpoint is a header of the published names and shapes in front of 24 GB of nothing:
 *        a file with a hole, of which no byte is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "cli/model_inventory.h"
#include "cli/model_resolve.h"
#include "cli/model_texts.h"
#include "cli/placement.h"
#include "cli/plan_bounds.h"

static const double GIB = 1073741824.0;
static const char RILL[] = SPILLWAY_SOURCE_DIR "/models/rill";
static char folder[] = "/tmp/spillway-placement-XXXXXX";

/* ---- a checkpoint without content ---- */

static void write_whole(const char *name, const struct buf *content, size_t file_bytes)
{
    char path[256];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content->data, content->len), (ssize_t)content->len);
    if (file_bytes > 0) {
        assert_int_equal(ftruncate(fd, (off_t)file_bytes), 0);
    }
    close(fd);
}

static const char *stored_name(enum dtype t)
{
    return t == DTYPE_BF16 ? "BF16" : t == DTYPE_F16 ? "F16" : t == DTYPE_F32 ? "F32" : "I32";
}

static void write_tensors(const struct model_inventory *inv)
{
    struct buf file, header;
    size_t at = 0;
    uint64_t len;

    buf_init(&file);
    buf_init(&header);
    for (size_t i = 0; i < inv->n; i++) {
        const struct made_tensor *t = &inv->tensors[i];

        buf_appendf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "{", t->name,
                    stored_name(t->tensor.dtype));
        for (size_t d = 0; d < t->tensor.n_dims; d++) {
            buf_appendf(&header, "%s%zu", d > 0 ? "," : "", t->tensor.shape[d]);
        }
        buf_appendf(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + t->n_bytes);
        at += t->n_bytes;
    }
    buf_append_char(&header, '}');
    while (header.len % 64 != 56) {
        buf_append_char(&header, ' ');
    }
    len = header.len;
    buf_append(&file, &len, sizeof len);
    buf_append(&file, header.data, header.len);
    assert_true(buf_ok(&file));
    write_whole("model.safetensors", &file, file.len + at);
    buf_release(&header);
    buf_release(&file);
}

static void make_hollow_model(const char *name)
{
    struct model_inventory inv;
    struct model_shape shape;
    struct model_variant variant;
    struct error err = {0};

    assert_int_equal(model_shape_find(&shape, name, &err), OK);
    variant = model_variant_default(&shape);
    assert_int_equal(model_inventory_new(&inv, &shape, &variant, &err), OK);
    write_tensors(&inv);
    model_inventory_release(&inv);
    for (size_t i = 0; i < model_texts_count; i++) {
        const struct model_text_input in = {&shape, &variant, 1};
        struct buf b;

        if (strstr(model_texts[i].name, "config")) {
            buf_init(&b);
            model_texts[i].write(&b, &in);
            write_whole(model_texts[i].name, &b, 0);
            buf_release(&b);
        }
    }
}

/* ---- planning ---- */

/* A checkpoint that is opened once and planned for often. */
struct opened {
    struct model_setup setup;
    struct model_config config;
};
static struct opened large, small;

struct planned {
    struct model_setup *setup;
    struct model_resolved r;
    struct error err;
    enum status rc;
};

static void open_once(struct opened *o, const char *dir)
{
    struct model_flags f = {.model_path = dir};
    struct error err = {0};

    model_flags_defaults(&f);
    if (model_setup_describe(&o->setup, &o->config, &f, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
}

static void close_once(struct opened *o)
{
    model_setup_close(&o->setup);
    model_config_release(&o->config);
}

static void plan_on(struct planned *p, struct opened *opened, const struct model_flags *f,
                    struct placement_target target)
{
    const struct model_setup_options o = {.quiet = true};

    *p = (struct planned){.setup = &opened->setup};
    opened->setup.settings.n = 0;
    target.static_fraction = f->mem_fraction_static;
    p->rc = model_setup_decide(&opened->setup, &p->r, f, &o, &opened->config, &target, &p->err);
}

static void plan_for(struct planned *p, struct opened *opened, const struct model_flags *f,
                     double gib)
{
    struct placement_target target = placement_target_assumed((size_t)(gib * GIB));

    target.host_bytes_max = target.pin_bytes_max = SIZE_MAX;
    plan_on(p, opened, f, target);
}

/* On a card of 16 GiB, with so much host memory and room in a folder. */
static void plan_host(struct planned *p, const struct model_flags *f, double memory, double disk)
{
    struct placement_target target = placement_target_assumed((size_t)(16 * GIB));

    target.host_bytes_max = (size_t)(memory * GIB);
    target.pin_bytes_max = SIZE_MAX;
    target.folder = "/large";
    target.folder_bytes_max = (size_t)(disk * GIB);
    plan_on(p, &large, f, target);
}

static void plan(struct planned *p, const struct model_flags *f, double gib)
{
    plan_for(p, &large, f, gib);
}

static const struct setting *row_of(const struct planned *p, const char *name)
{
    for (size_t i = 0; i < p->setup->settings.n; i++) {
        if (strcmp(p->setup->settings.rows[i].name, name) == 0) {
            return &p->setup->settings.rows[i];
        }
    }
    fail_msg("no row '%s'", name);
    return NULL;
}

static struct model_flags usual_flags(void)
{
    struct model_flags f = {0};

    model_flags_defaults(&f);
    return f;
}

static void print_plan(const struct planned *p)
{
    struct buf text;

    buf_init(&text);
    placement_print(&text, p->setup->placement);
    print_message("%s", buf_cstr(&text));
    buf_release(&text);
}

/* What every byte of the published model is, on a card that holds all of it. */
static void test_real_size(void **state)
{
    struct model_flags f = usual_flags();
    struct planned p;
    const struct budget_plan *b;

    (void)state;
    f.dtype = "bfloat16";
    plan(&p, &f, 139);
    assert_int_equal(p.rc, OK);
    print_plan(&p);
    b = &p.setup->placement->plan;
    assert_false(b->overflows);
    assert_int_equal(p.setup->placement->in.block_bytes, 1622016);
    assert_int_equal(p.setup->placement->in.n_layers, 40);
    assert_int_equal(p.setup->placement->in.n_experts, 256);
    assert_int_equal(b->bytes[BUDGET_EMBEDDING], (size_t)248320 * 2048 * 2);
    assert_in_range(b->bytes[BUDGET_DENSE], 3870ul * 1000 * 1000, 3930ul * 1000 * 1000);
    assert_in_range(b->bytes[BUDGET_EXPERTS], (size_t)40 * 256 * 1622016,
                    (size_t)40 * (256 * 1622016 + (2 << 20)));
    assert_int_equal(p.r.max_running, 32);
    assert_int_equal(p.r.max_total_tokens, 262144);
    assert_string_equal(row_of(&p, "expert-miss")->done, "none");

    f.dense_quant = "int8";
    plan(&p, &f, 139);
    assert_int_equal(p.rc, OK);
    b = &p.setup->placement->plan;
    assert_in_range(b->bytes[BUDGET_DENSE], 1950ul * 1000 * 1000, 2100ul * 1000 * 1000);
}

/* The launch line that people come with, on cards of 12, 16 and 24 GiB. */
static void test_seed(void **state)
{
    static const double caps[] = {12, 16, 24};
    static const char *const limits[] = {"10", "12", "14", "auto"};
    struct model_flags f = usual_flags();
    size_t slots[3] = {0};

    (void)state;
    f.dtype = "float16";
    f.kv_cache_dtype = "fp8_e4m3";
    f.offload_group_size = 1;
    f.mem_fraction_static = 0.80;
    f.disable_cuda_graph = true;
    for (size_t c = 0; c < 3; c++) {
        for (size_t l = 0; l < 4; l++) {
            struct planned p;
            const struct budget_plan *b;

            f.cpu_offload_gb = limits[l];
            plan(&p, &f, caps[c]);
            print_message("cap %g, --cpu-offload-gb %s: %s", caps[c], limits[l],
                          p.rc == OK ? "" : p.err.text);
            if (p.rc != OK) { /* 12 GiB x 0.8 leave more than 10 GiB without a slot */
                assert_true(caps[c] < 16 && l == 0);
                assert_int_equal(p.rc, ERR_NO_MEMORY);
                assert_string_equal(p.err.param, "cpu-offload-gb");
                print_message("\n");
                continue;
            }
            b = &p.setup->placement->plan;
            print_message("%zu slots, %.2f GiB absent, static %.3f, total %.2f GiB\n", b->n_slots,
                          (double)b->absent_bytes / GIB, (double)b->static_bytes / (caps[c] * GIB),
                          (double)b->total_bytes / GIB);
            assert_true(b->overflows);
            assert_true((double)b->static_bytes <= 0.80 * caps[c] * GIB);
            assert_true((double)b->total_bytes <= caps[c] * GIB);
            assert_int_equal(p.r.max_running, 4);
            assert_int_equal(p.r.max_total_tokens, 65536);
            assert_string_equal(row_of(&p, "offload-group-size")->done, "no effect");
            assert_string_equal(row_of(&p, "cpu-activations")->done, "int8");
            if (c == 1 && l == 1) {
                print_plan(&p);
            }
            slots[c] = b->n_slots;
        }
    }
    assert_true(slots[0] > 2000 && slots[0] < slots[1] && slots[1] < slots[2]);
}

static void test_groups(void **state)
{
    struct model_flags f = usual_flags();
    struct planned p;
    struct model_offload o;

    (void)state;
    f.offload_group_size = 2; /* the second layer of each pair */
    plan(&p, &f, 18);
    assert_int_equal(p.rc, OK);
    assert_true(placement_offload(&o, p.setup->placement, NULL));
    assert_int_equal(p.setup->placement->in.n_layers_overflow, 20);
    for (size_t l = 0; l < 40; l++) {
        assert_int_equal(o.may_overflow[l], l % 2);
    }
    assert_int_equal(o.n_slots, p.setup->placement->plan.n_slots);
    assert_non_null(strstr(row_of(&p, "offload-group-size")->done, "20 of 40"));

    f.offload_num_in_group = 3;
    plan(&p, &f, 16);
    assert_int_equal(p.rc, ERR_USAGE);
    f.offload_num_in_group = 0;
    plan(&p, &f, 16);
    assert_int_equal(p.rc, ERR_NO_MEMORY);
    assert_non_null(strstr(p.err.text, "no layer's experts may overflow"));
}

/* What the card reads from host memory by rows is no weight of its own. */
static void test_embedding(void **state)
{
    static const size_t n_bytes = (size_t)248320 * 2048 * 2;
    struct model_flags f = usual_flags();
    struct planned p;
    const struct budget_plan *b;

    (void)state;
    f.dtype = "bfloat16";
    f.dense_quant = "int8";
    plan(&p, &f, 16);
    assert_int_equal(p.rc, OK);
    b = &p.setup->placement->plan;
    assert_int_equal(b->bytes[BUDGET_EMBEDDING], 0);
    assert_int_equal(b->host[BUDGET_EMBEDDING], n_bytes);
    assert_int_equal(b->host[BUDGET_EXPERTS], (size_t)40 * 256 * 1622016);
    assert_int_equal(b->host_bytes, b->host[BUDGET_EXPERTS] + n_bytes);
    assert_in_range(b->n_slots, 7600, 7700); /* 627 of them for the embedding */
    plan(&p, &f, 24);
    assert_false(p.setup->placement->plan.overflows);
    assert_int_equal(p.setup->placement->plan.bytes[BUDGET_EMBEDDING], n_bytes);
    assert_int_equal(p.setup->placement->plan.host_bytes, 0);
}

/* Steps are cut smaller only where they would take more than a tenth of what may be used. */
static void test_chunks(void **state)
{
    static const struct {
        double gib;
        size_t chunk;
    } cases[] = {{3, 1024}, {4, 1024}, {5, 2048}, {16, 2048}};
    struct model_flags f = usual_flags();
    struct planned p;

    (void)state;
    f.dtype = "bfloat16";
    f.dense_quant = "int8";
    f.max_total_tokens = 4096;
    f.max_running_requests = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t *n;

        plan(&p, &f, cases[i].gib);
        n = p.setup->placement->plan.bytes;
        print_message(
            "%g GiB: chunks of %zu, steps take %.1f%% %s\n", cases[i].gib, p.r.chunk_tokens,
            100 * (double)(n[BUDGET_ACTIVATIONS] + n[BUDGET_SCRATCH] + n[BUDGET_STAGING]) /
                (cases[i].gib * GIB),
            p.err.text);
        assert_int_equal(p.rc, OK);
        assert_int_equal(p.r.chunk_tokens, cases[i].chunk);
        assert_int_equal(p.setup->placement->chunk_tokens, cases[i].chunk);
    }
    f.chunked_prefill_size = 4096; /* asked for */
    plan(&p, &f, 4);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.r.chunk_tokens, 4096);
}

/* The numbers that a refusal names are enough. */
static void test_refusal(void **state)
{
    struct model_flags f = usual_flags();
    struct planned p;
    const char *at;
    double cap = 0;

    (void)state;
    f.dtype = "bfloat16";
    f.max_total_tokens = 262144;
    plan(&p, &f, 5);
    assert_int_equal(p.rc, ERR_NO_MEMORY);
    print_message("%s\n", p.err.text);
    at = strstr(p.err.text, "--gpu-memory-gb ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "--gpu-memory-gb %lf", &cap), 1);
    plan(&p, &f, cap);
    assert_int_equal(p.rc, OK);
    f.max_total_tokens = 0;
    plan(&p, &f, 5);
    assert_int_equal(p.rc, ERR_NO_MEMORY);
    print_message("%s\n", p.err.text);
    assert_non_null(strstr(p.err.text, "--max-total-tokens"));
    assert_non_null(strstr(p.err.text, "--dense-quant int8"));
    f.dense_quant = "int8";
    plan(&p, &f, 5);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.r.max_total_tokens, 65536);
    f.dense_quant = NULL;
    f.cpu_offload_gb = "0";
    plan(&p, &f, 16);
    assert_int_equal(p.rc, ERR_NO_MEMORY);
    assert_string_equal(p.err.param, "cpu-offload-gb");
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part)) {
        fail_msg("'%s' is not in '%s'", part, text);
    }
}

static void expect_refused(const struct planned *p, enum status code, const char *param,
                           const char *part)
{
    print_message("%s\n", p->err.text);
    assert_int_equal(p->rc, code);
    assert_string_equal(p->err.param, param);
    expect_text(p->err.text, part);
}

/* Of 15.47 GiB of experts that overflow. */
static void expect_file(const struct planned *p, bool is_warning)
{
    struct placement *place = p->setup->placement;
    struct json_object *o = placement_json(place);
    struct model_offload how;
    struct buf text;

    if (p->rc != OK) {
        fail_msg("%s", p->err.text);
    }
    buf_init(&text);
    placement_print(&text, place);
    expect_text(buf_cstr(&text), "file in /large: 15.4");
    buf_clear(&text);
    assert_int_equal(placement_file_note(&text, place), is_warning);
    print_message("%s\n", buf_cstr(&text));
    expect_text(buf_cstr(&text), "GiB of experts are in a file in '/large'");
    expect_text(buf_cstr(&text), "1.62 MB to be read from the disk");
    assert_int_equal(strstr(buf_cstr(&text), "GiB would be needed") != NULL, is_warning);
    buf_release(&text);
    assert_string_equal(row_of(p, "offload-host")->done, "file");
    assert_string_equal(row_of(p, "offload-folder")->done, "/large");
    assert_true(placement_offload(&how, place, NULL));
    assert_string_equal(how.folder, "/large");
    assert_int_equal(place->plan.host[BUDGET_EXPERTS], 0);
    assert_in_range(place->plan.file_bytes, (size_t)40 * 256 * 1622016,
                    (size_t)40 * (256 * 1622016 + (64 << 10)));
    assert_non_null(o);
    assert_int_equal(json_object_get_uint64(json_object_object_get(o, "file_bytes")),
                     place->plan.file_bytes);
    assert_string_equal(json_object_get_string(json_object_object_get(o, "file_folder")), "/large");
    json_object_put(o);
}

/* Host memory that is short of the plan, by whatever: experts go to a file, or the numbers are said. */
static void test_host_memory(void **state)
{
    struct model_flags f = usual_flags();
    struct model_offload how;
    struct planned p;
    double wanted;
    size_t slots;

    (void)state;
    f.dtype = "bfloat16";
    f.dense_quant = "int8";
    plan_host(&p, &f, 64, 100);
    assert_int_equal(p.rc, OK);
    assert_false(p.setup->placement->plan.in_file);
    assert_string_equal(row_of(&p, "offload-host")->done, "memory");
    assert_true(placement_offload(&how, p.setup->placement, NULL));
    assert_null(how.folder);
    slots = p.setup->placement->plan.n_slots;
    wanted = (double)p.setup->placement->plan.host_wanted / GIB;
    print_message("%.3f GiB, %.3f of them while loading\n", wanted,
                  (double)p.setup->placement->in.host_loading / GIB);
    assert_true(wanted > 15.47 + 0.94 + 1.8 && wanted < 19.5); /* experts, embedding, int8 */

    plan_host(&p, &f, wanted - 0.001, 100);
    expect_file(&p, true);
    assert_int_equal(p.setup->placement->plan.n_slots, slots);
    assert_true(p.setup->placement->plan.host_wanted > p.setup->placement->target.host_bytes_max);
    plan_host(&p, &f, wanted + 0.001, 100);
    assert_false(p.setup->placement->plan.in_file);
    f.offload_host = "file";
    plan_host(&p, &f, 64, 100);
    expect_file(&p, false);

    f.offload_host = "memory";
    plan_host(&p, &f, 12, 100);
    expect_refused(&p, ERR_NO_MEMORY, "offload-host", "--offload-host auto puts 15.47 GiB");
    expect_text(p.err.text, "12.00 GiB are available");
    f.offload_host = "auto";
    plan_host(&p, &f, 12, 15);
    expect_refused(&p, ERR_NO_MEMORY, "offload-folder",
                   "a file of 15.47 GiB for experts does not fit '/large', where 15.00 GiB");
    plan_host(&p, &f, 12, 15.48); /* as the refusal says */
    expect_file(&p, true);
    plan_host(&p, &f, 2, 100);
    expect_refused(&p, ERR_NO_MEMORY, "offload-host", "even with experts in a file");

    f.expert_miss = "fetch";
    plan_host(&p, &f, 12, 100);
    expect_refused(&p, ERR_NO_MEMORY, "offload-host", "--expert-miss fetch");
    f.offload_host = "file";
    plan_host(&p, &f, 64, 100);
    expect_refused(&p, ERR_USAGE, "offload-host", "--expert-miss fetch");
}

/* A folder that is none, or on no disk. */
static void test_folder(void **state)
{
    struct model_flags f = usual_flags();
    struct placement_target target = placement_target_assumed((size_t)(16 * GIB));
    struct planned p;

    (void)state;
    f.dtype = "bfloat16";
    placement_target_host(&target, "/no such folder");
    expect_text(target.folder_fault, "--offload-folder: cannot use '/no such folder'");
    target.host_bytes_max = (size_t)(12 * GIB);
    plan_on(&p, &large, &f, target);
    expect_refused(&p, ERR_NO_MEMORY, "offload-host", "cannot use '/no such folder'");
    target.host_bytes_max = SIZE_MAX; /* then nobody minds */
    plan_on(&p, &large, &f, target);
    assert_int_equal(p.rc, OK);
    f.offload_host = "file";
    plan_on(&p, &large, &f, target);
    expect_refused(&p, ERR_USAGE, "offload-host", "cannot use '/no such folder'");
}

/* More running requests are asked for than the default of overflow. */
static void test_running(void **state)
{
    struct model_flags f = usual_flags();
    struct planned p;
    size_t n;

    (void)state;
    f.dtype = "bfloat16";
    f.max_running_requests = 16;
    plan(&p, &f, 16);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.r.max_running, 16);
    n = p.setup->placement->plan.n_slots;
    f.max_running_requests = 0;
    plan(&p, &f, 16);
    assert_int_equal(p.r.max_running, 4);
    assert_true(p.setup->placement->plan.n_slots > n);
}

static void test_bounds(void **state)
{
    struct model_flags f = usual_flags();
    struct plan_rates r = plan_rates_assumed();
    struct plan_bounds b;
    struct planned p;
    struct buf text;

    (void)state;
    f.dtype = "bfloat16";
    f.dense_quant = "int8";
    plan(&p, &f, 16);
    assert_int_equal(p.rc, OK);
    plan_rates_give(&r, 762, 50, 57, 0);
    plan_bounds_make(&b, p.setup->placement, &r, 8192);
    buf_init(&text);
    plan_bounds_print(&text, &b, p.setup->placement, &r);
    print_message("%s", buf_cstr(&text));
    buf_release(&text);
    assert_true(b.rows[1].is_local && b.rows[1].hits > b.rows[0].hits);
    assert_true(b.rows[0].bound_tok_s > 100 && b.rows[0].bound_tok_s < 500);
    assert_true(b.rows[1].in_turn_tok_s > b.rows[0].in_turn_tok_s);
    for (size_t i = 0; i < b.n_rows; i++) {
        assert_true(b.rows[i].in_turn_tok_s <= b.rows[i].bound_tok_s);
    }
}

/* Another kind of model, small: everything by the same code. */
static void test_small(void **state)
{
    struct model_flags f = usual_flags();
    struct planned p;

    (void)state;
    f.gpu_expert_slots = "25%";
    plan_for(&p, &small, &f, 2);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.setup->placement->plan.n_slots, 32);
    assert_non_null(strstr(row_of(&p, "gpu-expert-slots")->done, "32 of 128"));
    f.gpu_expert_slots = "101%";
    plan_for(&p, &small, &f, 2);
    assert_int_equal(p.rc, ERR_USAGE);
}

static void test_values(void **state)
{
    static const struct {
        const char *text;
        bool is_limit, is_slots;
    } cases[] = {
        {"auto", true, false},  {"12", true, true},       {"0.5", true, false},
        {"0", true, true},      {"-1", false, false},     {"25%", false, true},
        {"12.5%", false, true}, {"100.1%", false, false}, {"%", false, false},
        {"", false, false},     {"5K", false, true},      {"1e9", false, false},
        {"70000", false, true}, {"nan", false, false},    {"0x10", false, false},
        {"10 %", false, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum budget_offload offload;
        enum budget_slots slots;
        struct error err = {0};
        size_t n_bytes;
        double n;

        if ((offload_limit_read(&offload, &n_bytes, cases[i].text, &err) == OK) !=
                cases[i].is_limit ||
            (offload_slots_read(&slots, &n, cases[i].text, &err) == OK) != cases[i].is_slots) {
            fail_msg("'%s': %s", cases[i].text, err.text);
        }
    }
}

static int make(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) {
        return -1;
    }
    make_hollow_model("qwen3.5-35b-a3b");
    open_once(&large, folder);
    open_once(&small, RILL);
    return 0;
}

static int unmake(void **state)
{
    static const char *const names[] = {"model.safetensors",
                                        "config.json",
                                        "generation_config.json",
                                        "tokenizer_config.json",
                                        "preprocessor_config.json",
                                        "quantize_config.json",
                                        "video_preprocessor_config.json"};
    char path[256];

    (void)state;
    close_once(&large);
    close_once(&small);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_real_size),
        cmocka_unit_test(test_seed),        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_refusal),     cmocka_unit_test(test_running),
        cmocka_unit_test(test_chunks),      cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_bounds),      cmocka_unit_test(test_small),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_folder),
    };

    return cmocka_run_group_tests(tests, make, unmake);
}
