/* cuda_images.h - the compiled kernels inside the program.
 *
 * Place: backend/cuda; private. The table is written by the build (cmake/CudaKernels.cmake), one image
 *        per kernels/X.cu; empty when there was no nvcc. */
#ifndef BACKEND_CUDA_CUDA_IMAGES_H
#define BACKEND_CUDA_CUDA_IMAGES_H

struct cuda_image {
    const char *name; /* "linear_gemv" */
    const void *data; /* a fat binary: machine code for several cards, and PTX */
};

extern const struct cuda_image cuda_images[]; /* ends with a NULL name */

#endif
