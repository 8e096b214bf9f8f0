/* tensor_class.h - what a checkpoint's tensor is for, told from its name.
 *
 * Place: cli, for print-outs only: the loader binds tensors by its own exact lists. */
#ifndef CLI_TENSOR_CLASS_H
#define CLI_TENSOR_CLASS_H

#include "base/str.h"

enum tensor_class {
    CLASS_EMBEDDING,
    CLASS_HEAD,
    CLASS_NORM,
    CLASS_ATTENTION,
    CLASS_LINEAR_ATTENTION,
    CLASS_ROUTER,
    CLASS_EXPERTS,
    CLASS_SHARED_EXPERT,
    CLASS_MLP,
    CLASS_VISION, /* not loaded */
    CLASS_MTP,    /* not loaded */
    CLASS_OTHER,
    CLASS_COUNT
};

enum tensor_class tensor_class_of(const char *name);
const char *tensor_class_name(enum tensor_class c); /* "routed experts" */
bool tensor_class_is_skipped(enum tensor_class c);

#endif
