/* cuda_driver.c - finds the driver's functions in libcuda.so.1, when there is one.
 *
 * Place: backend/cuda. See cuda_driver.h. Names carry the driver's version suffixes: "_v2" is the form
 *        with 64-bit sizes that every driver since 2011 has and that its own header maps the plain name
 *        to; the plain symbol is the older, other form. */
#include "backend/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct symbol {
    const char *name;
    size_t at; /* of the table's member */
    bool is_optional;
};

#define SYMBOL(name, member)                                                                       \
    {                                                                                              \
        name, offsetof(struct cuda_driver, member), false                                          \
    }
#define OPTIONAL(name, member)                                                                     \
    {                                                                                              \
        name, offsetof(struct cuda_driver, member), true                                           \
    }

static const struct symbol symbols[] = {
    SYMBOL("cuInit", init),
    SYMBOL("cuDriverGetVersion", driver_get_version),
    SYMBOL("cuGetErrorName", get_error_name),
    SYMBOL("cuGetErrorString", get_error_string),
    SYMBOL("cuDeviceGetCount", device_get_count),
    SYMBOL("cuDeviceGet", device_get),
    SYMBOL("cuDeviceGetName", device_get_name),
    SYMBOL("cuDeviceGetAttribute", device_get_attribute),
    SYMBOL("cuDevicePrimaryCtxRetain", device_primary_ctx_retain),
    SYMBOL("cuDevicePrimaryCtxRelease_v2", device_primary_ctx_release),
    SYMBOL("cuCtxSetCurrent", ctx_set_current),
    SYMBOL("cuMemGetInfo_v2", mem_get_info),
    SYMBOL("cuMemAlloc_v2", mem_alloc),
    SYMBOL("cuMemFree_v2", mem_free),
    SYMBOL("cuMemHostAlloc", mem_host_alloc),
    SYMBOL("cuMemFreeHost", mem_free_host),
    SYMBOL("cuMemcpyHtoDAsync_v2", memcpy_htod_async),
    SYMBOL("cuMemcpyDtoHAsync_v2", memcpy_dtoh_async),
    SYMBOL("cuMemcpyDtoDAsync_v2", memcpy_dtod_async),
    SYMBOL("cuMemsetD8Async", memset_d8_async),
    SYMBOL("cuStreamCreate", stream_create),
    SYMBOL("cuStreamDestroy_v2", stream_destroy),
    SYMBOL("cuStreamSynchronize", stream_synchronize),
    SYMBOL("cuStreamWaitEvent", stream_wait_event),
    SYMBOL("cuStreamBeginCapture_v2", stream_begin_capture),
    SYMBOL("cuStreamEndCapture", stream_end_capture),
    SYMBOL("cuGraphInstantiateWithFlags", graph_instantiate),
    SYMBOL("cuGraphLaunch", graph_launch),
    SYMBOL("cuGraphExecDestroy", graph_exec_destroy),
    SYMBOL("cuGraphDestroy", graph_destroy),
    SYMBOL("cuEventCreate", event_create),
    SYMBOL("cuEventDestroy_v2", event_destroy),
    SYMBOL("cuEventRecord", event_record),
    SYMBOL("cuEventSynchronize", event_synchronize),
    SYMBOL("cuEventElapsedTime", event_elapsed_time),
    SYMBOL("cuModuleLoadData", module_load_data),
    SYMBOL("cuModuleUnload", module_unload),
    SYMBOL("cuModuleGetFunction", module_get_function),
    SYMBOL("cuFuncSetAttribute", func_set_attribute),
    SYMBOL("cuLaunchKernelEx", launch_kernel_ex),
    OPTIONAL("cuDeviceGetPCIBusId", device_get_pci_bus_id),
    OPTIONAL("cuFuncLoad", func_load), /* 12.4, as the next three */
    OPTIONAL("cuModuleGetFunctionCount", module_get_function_count),
    OPTIONAL("cuModuleEnumerateFunctions", module_enumerate_functions),
    OPTIONAL("cuFuncGetName", func_get_name),
    OPTIONAL("cuMemHostRegister_v2", mem_host_register),
    OPTIONAL("cuMemHostUnregister", mem_host_unregister),
};

struct cuda_driver *cuda_driver_open_from(const char *library, struct error *err)
{
    struct cuda_driver *drv;
    /* The driver starts threads of its own: once in the process it cannot be taken out again. */
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (!lib) {
        error_set(err, ERR_UNSUPPORTED, "there is no NVIDIA driver here: %s", dlerror());
        return NULL;
    }
    drv = calloc(1, sizeof *drv);
    if (!drv) {
        error_set(err, ERR_NO_MEMORY, "cannot allocate the table of the driver's functions");
    }
    for (size_t i = 0; drv && i < sizeof symbols / sizeof symbols[0]; i++) {
        void *f = dlsym(lib, symbols[i].name);

        _Static_assert(sizeof f == sizeof drv->init, "functions are as wide as data pointers");
        memcpy((char *)drv + symbols[i].at, &f, sizeof f);
        if (!f && !symbols[i].is_optional) {
            error_set(err, ERR_UNSUPPORTED,
                      "the NVIDIA driver is too old: %s has no function '%s' (11.8 or newer has)",
                      library, symbols[i].name);
            free(drv);
            drv = NULL;
        }
    }
    dlclose(lib);
    return drv;
}

struct cuda_driver *cuda_driver_open(struct error *err)
{
    return cuda_driver_open_from("libcuda.so.1", err);
}

void cuda_driver_close(struct cuda_driver *drv)
{
    free(drv);
}

/* ---- the management library ---- */

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus_id)(const char *id, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
};

static const struct symbol nvml_symbols[] = {
    {"nvmlInit_v2", offsetof(struct nvml, init), false},
    {"nvmlShutdown", offsetof(struct nvml, shutdown), false},
    {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct nvml, by_bus_id), false},
    {"nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory), false},
};

bool cuda_driver_free_bytes(const struct cuda_driver *drv, CUdevice device, size_t *free_bytes)
{
    struct nvml nvml;
    struct nvml_memory memory = {0};
    char id[32];
    void *card;
    bool is_known = false;
    void *lib;

    if (!drv->device_get_pci_bus_id || drv->device_get_pci_bus_id(id, sizeof id, device) != 0) {
        return false;
    }
    lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        return false;
    }
    for (size_t i = 0; i < sizeof nvml_symbols / sizeof nvml_symbols[0]; i++) {
        void *f = dlsym(lib, nvml_symbols[i].name);

        if (!f) {
            dlclose(lib);
            return false;
        }
        memcpy((char *)&nvml + nvml_symbols[i].at, &f, sizeof f);
    }
    if (nvml.init() == 0) {
        is_known = nvml.by_bus_id(id, &card) == 0 && nvml.memory(card, &memory) == 0;
        nvml.shutdown();
    }
    dlclose(lib);
    *free_bytes = is_known ? (size_t)memory.free : 0;
    return is_known;
}
