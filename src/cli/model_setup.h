/* model_setup.h - from flags to a loaded model: the wiring that serve, run, eval and bench share.
 *
 * Place: cli; the one place that picks a concrete backend. */
#ifndef CLI_MODEL_SETUP_H
#define CLI_MODEL_SETUP_H

#include "backend/cpu/cpu_backend.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/flags.h"
#include "cli/settings.h"
#include "formats/checkpoint.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#define OFFLOAD_FOLDER_DEFAULT "/var/tmp" /* for large files, and on a disk by custom */

struct model_flags { /* zero-initialise, then model_flags_defaults() */
    const char *model_path;
    const char *tokenizer_path;
    const char *dtype;           /* auto|half|float16|bfloat16|float|float32 */
    const char *kv_cache_dtype;  /* auto|float32|float16|bf16|bfloat16|fp8_e4m3|fp8_e5m2 */
    const char *mamba_ssm_dtype; /* auto|float32|bfloat16 */
    const char *cpu_activations; /* auto|f32|bf16|int8 */
    const char *dense_quant;     /* none|int8 */
    const char *quantization;    /* must agree with the checkpoint when given */
    const char *load_format;
    const char *model_override_args; /* JSON */
    const char *cpu_isa;             /* auto|scalar|avx2|avxvnni|avx512|amx */
    size_t threads;                  /* 0: one per physical core */
    size_t context_length;           /* 0: from the config */
    size_t max_total_tokens;         /* 0: default */
    size_t max_running_requests;     /* 0: default */
    int64_t chunked_prefill_size;    /* -1: off; 0: default */
    const char *chat_template;       /* file, or NULL */
    const char *revision;            /* of a hub name, or NULL */
    size_t max_prefill_tokens;       /* per step; 0: one chunk */
    const char *device;              /* auto|cpu|cuda */
    size_t base_gpu_id;              /* which card */
    bool disable_cuda_graph;
    double gpu_memory_gb; /* GiB that the driver may show for this process; 0: the whole card */
    double mem_fraction_static;   /* of them for weights, KV and states; 0: what the rest leaves */
    const char *cpu_offload_gb;   /* GIB|auto; NULL: not given. These are read by offload_flags.h */
    const char *gpu_expert_slots; /* N|P%; NULL: not given */
    int64_t offload_group_size;   /* layers; -1, 0: no groups */
    int64_t offload_num_in_group;
    int64_t offload_prefetch_step; /* -1: not given */
    const char *offload_mode;      /* cpu|meta|shm_cpu|sharded_gpu; NULL: not given */
    const char *expert_miss;       /* auto|fetch|cpu */
    const char *offload_host;      /* auto|memory|file */
    const char *offload_folder;    /* of a file for experts that host memory has no room for */
    bool offload_no_overlap;       /* no flag: large steps copy and compute in turns, for bench */
};

extern const struct flag model_flag_table[];
extern const size_t model_flag_count;
void model_flags_defaults(struct model_flags *f);

struct placement;
struct placement_target;
struct model_resolved;

struct model_setup {
    struct checkpoint *checkpoint;
    struct backend *cpu;     /* also where a card computes: its threads load the weights */
    struct backend *backend; /* that runs the model: cpu or a card's */
    struct model *model;
    struct tokenizer *tokenizer;         /* NULL when not asked for */
    struct chat_template *chat_template; /* NULL when the checkpoint has none or not asked for */
    struct generation_config generation;
    int32_t eos_ids[CONFIG_EOS_MAX]; /* generation_config's, else config's */
    size_t n_eos_ids;
    size_t chunk_tokens, context_length, max_running; /* chunk_tokens 0: prompts are not cut */
    size_t max_prefill_tokens;
    enum cpu_activations activations;
    struct placement *placement;  /* on a card; else NULL */
    struct settings settings;     /* asked and done, for /server_info */
    struct json_object *override; /* --json-model-override-args, or NULL */
};

struct model_setup_options {
    bool want_tokenizer, want_template;
    size_t rows_max;     /* 0: prefill tokens of a step + running */
    size_t out_rows_max; /* 0: running; SIZE_MAX: rows_max (eval) */
    size_t n_snapshots;
    size_t gdn_chunk_min; /* 0: default */
    size_t max_running;   /* when --max-running-requests is not given; 0: MAX_RUNNING_DEFAULT */
    bool quiet;           /* no settings print-out; warnings stay */
};

/* Hub cache folders from the environment (the only getenv of the program besides flags): a static
 * list for checkpoint_open; NULL-terminated; strings live as long as the process. Not thread-safe. */
const char *const *hub_cache_dirs(void);

/* Refuses before anything large is read when weights, pools and scratch exceed the memory available. On
 * failure *out holds nothing. */
enum status model_setup_open(struct model_setup *out, const struct model_flags *f,
                             const struct model_setup_options *o, const struct log *log,
                             struct error *err);
void model_setup_close(struct model_setup *s);

/* The beginnings of it, for `plan`, which opens no model: the checkpoint and its config (released by the
 * caller); then types, sizes and the placement on the target (NULL: none is made). */
enum status model_setup_describe(struct model_setup *s, struct model_config *config,
                                 const struct model_flags *f, const struct log *log,
                                 struct error *err);
enum status model_setup_decide(struct model_setup *s, struct model_resolved *r,
                               const struct model_flags *f, const struct model_setup_options *o,
                               const struct model_config *c, const struct placement_target *target,
                               struct error *err);

const char *cpu_activations_name(enum cpu_activations a); /* as the flag says it */

#endif
