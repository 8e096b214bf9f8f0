/* inspect_report.h - the facts about a checkpoint that `spillway inspect` prints.
 *
 * Place: cli. Gathering reads headers and small JSON files only; with `check` also the scales, zero
 *        points and orders of all quantised matrices. */
#ifndef CLI_INSPECT_REPORT_H
#define CLI_INSPECT_REPORT_H

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/tensor_class.h"
#include "formats/checkpoint.h"
#include "formats/gptq.h"
#include "formats/model_config.h"

enum { INSPECT_ROWS_MAX = 128, INSPECT_LABEL_BYTES = 40 };

struct inspect_row { /* tensors of one class that are stored in one form */
    enum tensor_class class;
    char form[INSPECT_LABEL_BYTES]; /* "bfloat16", "gptq int4", "gptq scales float16" */
    size_t n_tensors, n_bytes;
};

struct inspect_report {
    const struct checkpoint *checkpoint; /* borrowed */
    struct model_config config;
    struct error config_error; /* code OK: config is valid */
    struct gptq_config *gptq;  /* NULL: not quantised, or quant_error */
    struct error quant_error;
    size_t n_quantised; /* modules with a qweight */
    struct inspect_row rows[INSPECT_ROWS_MAX];
    size_t n_rows; /* sorted by class; forms past the limit are dropped and counted */
    size_t n_dropped;
    size_t bytes_used, bytes_skipped;
    bool is_checked;
    size_t notes[GPTQ_NOTE_COUNT]; /* modules with each note, after a check */
    const char *tokenizer;         /* static text: file name, or NULL */
    const char *chat_template;     /* static text: where it is, or NULL */
};

/* *out is released with inspect_report_release, also after a failure. Only memory and, with check,
 * a damaged matrix fail; a config that cannot be read is a fact of the report. */
enum status inspect_gather(struct inspect_report *out, const struct checkpoint *c,
                           struct json_object *override, bool check, struct error *err);
void inspect_report_release(struct inspect_report *r);

/* KV bytes of one token at one byte per value, and state bytes of one sequence in float32. */
size_t inspect_kv_values(const struct model_config *c);
size_t inspect_state_bytes(const struct model_config *c);

void inspect_print_text(struct buf *out, const struct inspect_report *r, bool with_tensors);
/* ERR_NO_MEMORY only. */
enum status inspect_print_json(struct buf *out, const struct inspect_report *r, bool with_tensors,
                               struct error *err);

#endif
