/* cuda_memory_test.c - what loading a model asks of the backend: uploads by several threads, host memory
 * that is pinned where it is, and kernels found by the names that a driver lists. */
#include "backend/cpu/cpu_test_util.h"
#include "backend/cuda/cuda_private.h"
#include "backend/cuda/emulator/emulator.h"
#include "base/arena.h"
#include "base/pool.h"

/* A card (driver NULL), or the emulator, or what is given. */
static struct backend *backend_on(const struct cuda_driver *drv)
{
    char why[256];
    struct cuda_backend_options o = {.driver = drv};
    struct error err = {0};
    struct backend *be;

    if (!drv && !cuda_is_there(why, sizeof why)) {
        o.driver = cuda_emulator_driver();
    }
    if (cuda_backend_new(&be, &o, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return be;
}

static uint8_t *noise(size_t n, uint64_t seed)
{
    uint8_t *bytes = huge_new(n);

    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(test_next(&seed) >> 40);
    }
    return bytes;
}

/* Through both halves and more; the second one begins where a half is partly filled. */
static void test_upload(void **state)
{
    const size_t sizes[] = {1, 4097, (1 << 20) + 13, 2 * CUDA_WRITE_HALF + (5 << 20) + 7};
    struct backend *be = backend_on(NULL);
    struct error err = {0};
    struct pool *pool;

    (void)state;
    assert_int_equal(pool_new(&pool, 3, &err), OK);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i / 2];
        uint8_t *host = noise(n, 7 + i), *back = huge_new(n), *device;

        device = be->ops->buffer_new(be, n + 1);
        assert_non_null(device);
        assert_non_null(back);
        be->ops->upload(be, device + 1, host, n, i % 2 ? pool : NULL);
        be->ops->read(be, back, device + 1, n);
        assert_memory_equal(back, host, n);
        be->ops->buffer_free(be, device);
        free(host);
        free(back);
    }
    be->ops->upload(be, NULL, NULL, 0, pool);
    assert_int_equal(be->ops->wait(be, &err), OK);
    be->ops->free(be);
    pool_free(pool);
}

static void test_pin(void **state)
{
    const size_t n = (4 << 20) + 100; /* the piece goes on to the end of its last page */
    struct backend *be = backend_on(NULL);
    uint8_t *host = noise(n, 3), *device = be->ops->buffer_new(be, n);
    uint8_t *back = be->ops->host_new(be, n);
    struct error err = {0};

    (void)state;
    assert_non_null(device);
    assert_non_null(back);
    assert_false(be->ops->host_pin(be, host + 64, 4096)); /* not a page's border */
    assert_true(be->ops->host_pin(be, host, n));
    assert_false(be->ops->host_pin(be, host + (1 << 20), 4096)); /* is pinned */
    be->ops->write_later(be, device, host, n);
    be->ops->read_later(be, back, device, n);
    assert_int_equal(be->ops->wait(be, &err), OK);
    assert_memory_equal(back, host, n);
    be->ops->host_unpin(be, host);
    assert_true(be->ops->host_pin(be, host, n));
    be->ops->host_unpin(be, host);
    be->ops->host_unpin(be, NULL);
    be->ops->host_free(be, back);
    be->ops->buffer_free(be, device);
    be->ops->free(be);
    free(host);
}

static CUresult attribute_without(int *value, int attribute, CUdevice device)
{
    if (attribute == CUDA_ATTRIBUTE_REGISTERED_AT_HOST_ADDRESS) {
        *value = 0;
        return CUDA_SUCCESS_;
    }
    return cuda_emulator_driver()->device_get_attribute(value, attribute, device);
}

/* Drivers that cannot, or give pinned memory another address. */
static void test_pin_refused(void **state)
{
    struct cuda_driver drv = *cuda_emulator_driver();
    uint8_t *host = noise(4 << 20, 4);
    struct backend *be;

    (void)state;
    drv.device_get_attribute = attribute_without;
    be = backend_on(&drv);
    assert_false(be->ops->host_pin(be, host, 4 << 20));
    be->ops->free(be);
    drv = *cuda_emulator_driver();
    drv.mem_host_register = NULL;
    be = backend_on(&drv);
    assert_false(be->ops->host_pin(be, host, 4 << 20));
    be->ops->free(be);
    free(host);
}

/* ---- names ---- */

static struct {
    const char *const *names;
    unsigned n_names;
    size_t n_lookups;
} listed;

static CUresult list_count(unsigned *n, CUmodule module)
{
    (void)module;
    *n = listed.n_names;
    return CUDA_SUCCESS_;
}

static CUresult list_functions(CUfunction *out, unsigned n, CUmodule module)
{
    for (unsigned i = 0; i < n; i++) {
        cuda_emulator_driver()->module_get_function(&out[i], module, listed.names[i]);
    }
    return CUDA_SUCCESS_;
}

static CUresult list_name(const char **name, CUfunction f)
{
    for (unsigned i = 0; i < listed.n_names; i++) {
        CUfunction same;

        cuda_emulator_driver()->module_get_function(&same, NULL, listed.names[i]);
        if (same == f) {
            *name = listed.names[i];
            return CUDA_SUCCESS_;
        }
    }
    return CUDA_ERROR_NOT_FOUND_;
}

static CUresult counted_lookup(CUfunction *out, CUmodule module, const char *name)
{
    listed.n_lookups++;
    return cuda_emulator_driver()->module_get_function(out, module, name);
}

static void load_family(const struct cuda_driver *drv, const struct cuda_family *family,
                        size_t n_lookups)
{
    struct backend *be = backend_on(drv);
    struct error err = {0};

    listed.n_lookups = 0;
    if (cuda_family_load((struct cuda_backend *)be, family, &err) != OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(listed.n_lookups, n_lookups);
    be->ops->free(be);
}

static void test_names(void **state)
{
    const struct cuda_family *family = &cuda_best;
    struct cuda_driver drv = *cuda_emulator_driver();

    (void)state;
    drv.module_get_function = counted_lookup;
    load_family(&drv, family, family->n_kernels); /* the driver lists nothing */
    drv.module_get_function_count = list_count;
    drv.module_enumerate_functions = list_functions;
    drv.func_get_name = list_name;
    listed.names = family->kernels;
    listed.n_names = (unsigned)family->n_kernels;
    load_family(&drv, family, 0);
    listed.n_names--; /* what is not listed is asked for */
    load_family(&drv, family, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upload),
        cmocka_unit_test(test_pin),
        cmocka_unit_test(test_pin_refused),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
