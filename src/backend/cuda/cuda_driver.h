/* cuda_driver.h - the part of NVIDIA's driver interface that we use, as a table of functions.
 *
 * Place:  backend/cuda. Our own declarations, so that the program builds where no CUDA is installed; the
 *         names and numbers are the driver's (its binary interface is fixed). cuda_driver.c fills the
 *         table from libcuda.so.1; the emulator has a table of its own. */
#ifndef BACKEND_CUDA_CUDA_DRIVER_H
#define BACKEND_CUDA_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef int CUresult; /* 0: success */
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef unsigned long long CUdeviceptr;

enum {
    CUDA_SUCCESS_ = 0,
    CUDA_ERROR_OUT_OF_MEMORY_ = 2,
    CUDA_ERROR_NO_DEVICE_ = 100,
    CUDA_ERROR_NOT_FOUND_ = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS_ = 700,
};

/* Arguments of the calls below. */
enum {
    CUDA_ATTRIBUTE_MULTIPROCESSORS = 16, /* of a device */
    CUDA_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    CUDA_ATTRIBUTE_CAPABILITY_MINOR = 76,
    CUDA_ATTRIBUTE_REGISTERED_AT_HOST_ADDRESS = 91,
    CUDA_ATTRIBUTE_SHARED_OPTIN = 97,
    CUDA_FUNC_DYNAMIC_SHARED_MAX = 8, /* of a function */
    CUDA_HOST_REGISTER_PORTABLE = 1,  /* of host memory */
    CUDA_HOST_REGISTER_MAPPED = 2,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_NO_TIMING = 2,
    CUDA_CAPTURE_RELAXED = 2,
};

/* Launch attributes: 64 bytes of value each, 8-byte aligned, as the driver lays them out. */
enum { CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
struct cuda_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int programmatic_serialization; /* 1: the kernel may start before the one before has ended */
    } value;
};
struct cuda_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    struct cuda_launch_attribute *attributes;
    unsigned n_attributes;
};

struct cuda_driver {
    CUresult (*init)(unsigned flags);
    CUresult (*driver_get_version)(int *version);
    CUresult (*get_error_name)(CUresult error, const char **text);
    CUresult (*get_error_string)(CUresult error, const char **text);
    CUresult (*device_get_count)(int *count);
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*device_get_name)(char *name, int n, CUdevice device);
    CUresult (*device_get_attribute)(int *value, int attribute, CUdevice device);
    CUresult (*device_primary_ctx_retain)(CUcontext *context, CUdevice device);
    CUresult (*device_primary_ctx_release)(CUdevice device);
    CUresult (*ctx_set_current)(CUcontext context);
    CUresult (*mem_get_info)(size_t *free_bytes, size_t *total);
    CUresult (*mem_alloc)(CUdeviceptr *out, size_t n_bytes);
    CUresult (*mem_free)(CUdeviceptr p);
    CUresult (*mem_host_alloc)(void **out, size_t n_bytes, unsigned flags);
    CUresult (*mem_free_host)(void *p);
    CUresult (*memcpy_htod_async)(CUdeviceptr dst, const void *src, size_t n_bytes,
                                  CUstream stream);
    CUresult (*memcpy_dtoh_async)(void *dst, CUdeviceptr src, size_t n_bytes, CUstream stream);
    CUresult (*memcpy_dtod_async)(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes,
                                  CUstream stream);
    CUresult (*memset_d8_async)(CUdeviceptr dst, unsigned char value, size_t n_bytes,
                                CUstream stream);
    CUresult (*stream_create)(CUstream *out, unsigned flags);
    CUresult (*stream_destroy)(CUstream stream);
    CUresult (*stream_synchronize)(CUstream stream);
    CUresult (*stream_wait_event)(CUstream stream, CUevent event, unsigned flags);
    CUresult (*stream_begin_capture)(CUstream stream, int mode);
    CUresult (*stream_end_capture)(CUstream stream, CUgraph *out);
    CUresult (*graph_instantiate)(CUgraphExec *out, CUgraph graph, unsigned long long flags);
    CUresult (*graph_launch)(CUgraphExec exec, CUstream stream);
    CUresult (*graph_exec_destroy)(CUgraphExec exec);
    CUresult (*graph_destroy)(CUgraph graph);
    CUresult (*event_create)(CUevent *out, unsigned flags);
    CUresult (*event_destroy)(CUevent event);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_synchronize)(CUevent event);
    CUresult (*event_elapsed_time)(float *ms, CUevent start, CUevent end);
    CUresult (*module_load_data)(CUmodule *out, const void *image);
    CUresult (*module_unload)(CUmodule module);
    CUresult (*module_get_function)(CUfunction *out, CUmodule module, const char *name);
    CUresult (*func_set_attribute)(CUfunction f, int attribute, int value);
    CUresult (*launch_kernel_ex)(const struct cuda_launch_config *config, CUfunction f,
                                 void **params, void **extra);
    /* Not in every driver: NULL then. */
    CUresult (*device_get_pci_bus_id)(char *id, int n, CUdevice device);
    CUresult (*func_load)(CUfunction f);
    CUresult (*module_get_function_count)(unsigned *count, CUmodule module);
    CUresult (*module_enumerate_functions)(CUfunction *out, unsigned n, CUmodule module);
    CUresult (*func_get_name)(const char **name, CUfunction f);
    CUresult (*mem_host_register)(void *p, size_t n_bytes, unsigned flags);
    CUresult (*mem_host_unregister)(void *p);
};

/* A table of libcuda.so.1's functions; NULL with ERR_UNSUPPORTED and why. _from: of another library, for
 * tests. The library stays in the process; close gives back the table only, and takes NULL. */
struct cuda_driver *cuda_driver_open(struct error *err);
struct cuda_driver *cuda_driver_open_from(const char *library, struct error *err);
void cuda_driver_close(struct cuda_driver *drv);

/* Free bytes of a card, as NVIDIA's management library counts them: it needs no context, which itself
 * takes some hundred MiB. False: no such library, or it does not know. */
bool cuda_driver_free_bytes(const struct cuda_driver *drv, CUdevice device, size_t *free_bytes);

#endif
