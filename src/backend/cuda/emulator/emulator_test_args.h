/* emulator_test_args.h - arguments of the kernels that test the emulator itself. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_TEST_ARGS_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_TEST_ARGS_H

#include <stdint.h>

struct emulator_test_args {
    const void *in, *in2;
    void *out;
    int32_t n, mode;
};

#endif
