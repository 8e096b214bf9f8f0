/* selftest.h - one prefill and one decode through every op of the plan, before "ready".
 *
 * Place: runtime. Runs on an empty sequence: a prompt that spans a chunk border, then the same tokens
 *        one at a time; the logits must be finite and agree. A failure names the op or layer.
 *
 * has_rounded_inputs: the backend rounds what it multiplies with matrices (int8 or bfloat16
 * activations). Then the two ways differ by that rounding, as they do in half precision. */
#ifndef RUNTIME_SELFTEST_H
#define RUNTIME_SELFTEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "model/model.h"

struct selftest_report {
    double seconds;
    double max_rel_error; /* prefill against token by token */
    size_t n_tokens;
};
enum status selftest_run(struct model *m, bool has_rounded_inputs, struct selftest_report *out,
                         struct error *err);

#endif
