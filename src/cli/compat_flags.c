/* compat_flags.c - see compat_flags.h. Names as in SGLang 0.5.9 and its main branch of mid 2026. */
#include "cli/compat_flags.h"

#include <string.h>

#define VALUE(flag_name, why)                                                                      \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_STRING, .metavar = "VALUE", .no_effect = (why)           \
    }
#define VALUE_AS(flag_name, others, why)                                                           \
    {                                                                                              \
        .name = (flag_name), .aliases = (others), .kind = FLAG_STRING, .metavar = "VALUE",         \
        .no_effect = (why)                                                                         \
    }
#define NUMBER(flag_name, low, high, why)                                                          \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_DOUBLE, .metavar = "N", .no_effect = (why),              \
        .min = (low), .max = (high)                                                                \
    }
#define WHOLE(flag_name, low, high, why)                                                           \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_INT, .metavar = "N", .no_effect = (why), .min = (low),   \
        .max = (high)                                                                              \
    }
#define SWITCH(flag_name, why)                                                                     \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_BOOL, .no_effect = (why)                                 \
    }
#define LIST(flag_name, why)                                                                       \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_LIST, .metavar = "VALUE", .no_effect = (why)             \
    }
#define ONE_OF(flag_name, values, why)                                                             \
    {                                                                                              \
        .name = (flag_name), .kind = FLAG_CHOICE, .choices = (values), .no_effect = (why)          \
    }

#define OWN_OVERFLOW                                                                               \
    "experts overflow by --cpu-offload-gb or --gpu-expert-slots, and --expert-miss serves them"
#define OWN_GRAPHS   "decode steps are captured by their size; --disable-cuda-graph is the one choice"
#define ONE_KERNEL   "there is one kernel for it on each device, the one the plan print-out names"
#define ONE_MACHINE  "one process computes on one machine"
#define NO_DRAFTS    "tokens are not drafted ahead yet; drafts change the speed, not the greedy text"
#define NO_SLOTS     "the state pool has one slot per running request, and one more"
#define NO_REUSE     "prompts are not kept between requests yet"
#define OWN_SCHEDULE "requests run first in, first out, with chunks of fixed borders"
#define NO_ADAPTERS  "adapters are not loaded"
#define NO_CODE      "no code of a model folder is ever run"
#define NO_PROFILE   "there are no profiling hooks of this kind"

static const struct flag device_flags[] = {
    SWITCH(
        "deterministic",
        "the same request gives the same text in any company on a CPU; on a card not always yet"),
    SWITCH(
        "enable-deterministic-inference",
        "the same request gives the same text in any company on a CPU; on a card not always yet"),
    WHOLE("gpu-id-step", 0, 1024, ONE_MACHINE),
    SWITCH("disable-prefill-cuda-graph", OWN_GRAPHS),
    SWITCH("disable-cuda-graph-padding", OWN_GRAPHS),
    SWITCH("disable-piecewise-cuda-graph", OWN_GRAPHS),
    SWITCH("enable-piecewise-cuda-graph", OWN_GRAPHS),
    SWITCH("enable-profile-cuda-graph", OWN_GRAPHS),
    SWITCH("enable-cudagraph-gc", OWN_GRAPHS),
    LIST("cuda-graph-bs", OWN_GRAPHS),
    LIST("cuda-graph-bs-decode", OWN_GRAPHS),
    LIST("piecewise-cuda-graph-tokens", OWN_GRAPHS),
    VALUE("cuda-graph-max-bs", OWN_GRAPHS),
    VALUE("cuda-graph-max-bs-decode", OWN_GRAPHS),
    VALUE("cuda-graph-backend-decode", OWN_GRAPHS),
    VALUE("cuda-graph-backend-prefill", OWN_GRAPHS),
    VALUE("cuda-graph-config", OWN_GRAPHS),
    SWITCH("enable-torch-compile", OWN_GRAPHS),
    VALUE("torch-compile-max-bs", OWN_GRAPHS),
    VALUE("attention-backend", ONE_KERNEL),
    VALUE("decode-attention-backend", ONE_KERNEL),
    VALUE("prefill-attention-backend", ONE_KERNEL),
    VALUE("mm-attention-backend", ONE_KERNEL),
    VALUE("linear-attn-backend", ONE_KERNEL),
    VALUE("linear-attn-decode-backend", ONE_KERNEL),
    VALUE("linear-attn-prefill-backend", ONE_KERNEL),
    VALUE("mamba-backend", ONE_KERNEL),
    VALUE("sampling-backend", ONE_KERNEL),
    VALUE("moe-runner-backend", ONE_KERNEL),
    VALUE("fp8-gemm-backend", ONE_KERNEL),
    VALUE("fp4-gemm-backend", ONE_KERNEL),
    VALUE("triton-attention-num-kv-splits", ONE_KERNEL),
    VALUE("triton-attention-split-tile-size", ONE_KERNEL),
    SWITCH("triton-attention-reduce-in-fp32", "sums are in float32 always"),
    SWITCH("enable-memory-saver", "memory is taken once, at the start"),
    SWITCH("enable-p2p-check", ONE_MACHINE),
    SWITCH("disable-custom-all-reduce", ONE_MACHINE),
    SWITCH("enable-mscclpp", ONE_MACHINE),
    SWITCH("enable-symm-mem", ONE_MACHINE),
    SWITCH("enable-nccl-nvls", ONE_MACHINE),
};

static const struct flag other_flags[] = {
    SWITCH("trust-remote-code", NO_CODE),
    SWITCH("skip-server-warmup", "the self-test before 'ready' always runs; it is short"),
    VALUE("warmups", "the self-test before 'ready' always runs; it is short"),
    SWITCH("disable-fast-image-processor", "images are not read yet"),
    SWITCH("enable-multimodal", "images are not read yet; a request with one is refused"),
    VALUE("tokenizer-mode", "there is one tokenizer"),
    VALUE("tokenizer-worker-num", "there is one tokenizer"),
    VALUE("detokenizer-worker-num", "there is one detokenizer"),
    VALUE("model-impl", "there is one implementation of each model family"),
    VALUE("download-dir", "nothing is downloaded; the Hugging Face cache is searched"),
    VALUE("model-loader-extra-config", "weights are mapped from the files"),
    SWITCH("weight-loader-disable-mmap", "weights are mapped from the files"),
    VALUE("admin-api-key", "there are no administrative routes"),
    VALUE("tool-server", "there are no server-side tools"),
    VALUE("file-storage-path", "requests store no files"),
    VALUE("grammar-backend", "there is no choice of grammar engines"),
    VALUE("constrained-json-whitespace-pattern", "there is no choice of grammar engines"),
    SWITCH("constrained-json-disable-any-whitespace", "there is no choice of grammar engines"),
    SWITCH("enable-custom-logit-processor", "custom processors are Python code, which never runs"),
    VALUE("page-size", "pages have 64 tokens"),
    VALUE("schedule-policy", OWN_SCHEDULE),
    VALUE("schedule-conservativeness", OWN_SCHEDULE),
    SWITCH("enable-priority-scheduling", OWN_SCHEDULE),
    SWITCH("disable-overlap-schedule", OWN_SCHEDULE),
    SWITCH("enable-mixed-chunk", OWN_SCHEDULE),
    SWITCH("enable-dynamic-chunking", OWN_SCHEDULE),
    VALUE("prefill-max-requests", OWN_SCHEDULE),
    VALUE("num-continuous-decode-steps", OWN_SCHEDULE),
    SWITCH("disable-radix-cache", NO_REUSE),
    VALUE("radix-eviction-policy", NO_REUSE),
    SWITCH("enable-hierarchical-cache", NO_REUSE),
    VALUE("hicache-ratio", NO_REUSE),
    VALUE("hicache-size", NO_REUSE),
    VALUE("hicache-write-policy", NO_REUSE),
    VALUE("hicache-io-backend", NO_REUSE),
    VALUE("hicache-mem-layout", NO_REUSE),
    VALUE("hicache-storage-backend", NO_REUSE),
    VALUE("hicache-storage-prefetch-policy", NO_REUSE),
    VALUE("hicache-storage-backend-extra-config", NO_REUSE),
    SWITCH("enable-lmcache", NO_REUSE),
    VALUE("max-mamba-cache-size", NO_SLOTS),
    VALUE("mamba-full-memory-ratio", NO_SLOTS),
    VALUE("mamba-scheduler-strategy", NO_SLOTS),
    VALUE("mamba-radix-cache-strategy", NO_SLOTS),
    VALUE("mamba-track-interval", NO_SLOTS),
    VALUE("swa-full-tokens-ratio", "no supported model has a sliding window"),
    SWITCH("allow-auto-truncate", "a prompt that is too long gets a 400 that names the numbers"),
    SWITCH("stream-output", "it concerns /generate only"),
    SWITCH("incremental-streaming-output", "it concerns /generate only"),
    SWITCH("enable-metrics", "/metrics is always on"),
    SWITCH("enable-metrics-for-all-schedulers", "/metrics is always on"),
    SWITCH("show-time-cost", NO_PROFILE),
    VALUE("crash-dump-folder", NO_PROFILE),
    SWITCH("enable-trace", NO_PROFILE),
    VALUE("otlp-traces-endpoint", NO_PROFILE),
    VALUE("soft-watchdog-timeout", "at half of --watchdog-timeout /health is 503"),
    VALUE("log-level-http", "HTTP requests are logged by --log-requests"),
    VALUE("log-requests-format", "--log-format decides for all lines"),
    LIST("log-requests-target", "all lines go to standard error"),
    VALUE("bucket-time-to-first-token", "the buckets of /metrics are fixed"),
    SWITCH("sleep-on-idle", "an idle server sleeps always"),
    VALUE("mm-process-config", "images are not read yet"),
    VALUE("kt-weight-path", OWN_OVERFLOW),
    VALUE("kt-method", OWN_OVERFLOW),
    VALUE("kt-cpuinfer", OWN_OVERFLOW),
    VALUE("kt-threadpool-count", OWN_OVERFLOW),
    VALUE("kt-num-gpu-experts", OWN_OVERFLOW),
    VALUE("kt-max-deferred-experts-per-token", OWN_OVERFLOW),
    VALUE("moe-a2a-backend", ONE_MACHINE),
    VALUE("moe-dense-tp-size", ONE_MACHINE),
    VALUE("load-balance-method", ONE_MACHINE),
    VALUE("dist-timeout", ONE_MACHINE),
    VALUE("nccl-port", ONE_MACHINE),
    VALUE("speculative-algorithm", NO_DRAFTS),
    VALUE("speculative-num-steps", NO_DRAFTS),
    VALUE("speculative-eagle-topk", NO_DRAFTS),
    VALUE("speculative-num-draft-tokens", NO_DRAFTS),
    VALUE_AS("speculative-draft-model-path", "speculative-draft-model", NO_DRAFTS),
    VALUE("speculative-draft-model-revision", NO_DRAFTS),
    VALUE("speculative-draft-model-quantization", NO_DRAFTS),
    VALUE("speculative-draft-attention-backend", NO_DRAFTS),
    VALUE("speculative-accept-threshold-single", NO_DRAFTS),
    VALUE("speculative-accept-threshold-acc", NO_DRAFTS),
    VALUE("speculative-attention-mode", NO_DRAFTS),
    VALUE("speculative-token-map", NO_DRAFTS),
    VALUE("speculative-moe-runner-backend", NO_DRAFTS),
    VALUE("speculative-ngram-min-match-window-size", NO_DRAFTS),
    VALUE("speculative-ngram-max-match-window-size", NO_DRAFTS),
    VALUE("speculative-ngram-min-bfs-breadth", NO_DRAFTS),
    VALUE("speculative-ngram-max-bfs-breadth", NO_DRAFTS),
    VALUE("speculative-ngram-match-type", NO_DRAFTS),
    VALUE("speculative-ngram-branch-length", NO_DRAFTS),
    VALUE("speculative-ngram-capacity", NO_DRAFTS),
    /* Refused by compat_check unless harmless; the reasons are there. */
    VALUE_AS("tp-size", "tensor-parallel-size,tp", ONE_MACHINE),
    VALUE_AS("dp-size", "data-parallel-size,dp", ONE_MACHINE),
    VALUE_AS("pp-size", "pipeline-parallel-size,pp", ONE_MACHINE),
    VALUE_AS("ep-size", "expert-parallel-size,ep", ONE_MACHINE),
    VALUE("nnodes", ONE_MACHINE),
    VALUE("node-rank", ONE_MACHINE),
    VALUE("dist-init-addr", ONE_MACHINE),
    SWITCH("enable-lora", NO_ADAPTERS),
    LIST("lora-paths", NO_ADAPTERS),
    VALUE("max-lora-rank", NO_ADAPTERS),
    LIST("lora-target-modules", NO_ADAPTERS),
    VALUE("max-loras-per-batch", NO_ADAPTERS),
    VALUE("max-loaded-loras", NO_ADAPTERS),
    VALUE("lora-backend", NO_ADAPTERS),
    VALUE("quantization-param-path", "fp8 scales are per head and token"),
    SWITCH("is-embedding", "this is a server for chat and completion"),
    SWITCH("skip-tokenizer-init", "requests carry text"),
    VALUE("hf-chat-template-name", "the template 'default' is used"),
    VALUE("completion-template", "completions take the prompt as it is"),
    VALUE("preferred-sampling-params", "there are none"),
    VALUE("ssl-keyfile", "connections are not encrypted"),
    VALUE("ssl-certfile", "connections are not encrypted"),
    VALUE("ssl-ca-certs", "connections are not encrypted"),
    VALUE("ssl-keyfile-password", "connections are not encrypted"),
    SWITCH("enable-ssl-refresh", "connections are not encrypted"),
    VALUE("tokenizer-manager-port", ONE_MACHINE),
    VALUE("disaggregation-mode", ONE_MACHINE),
};

const struct flag_group compat_groups[COMPAT_GROUPS] = {
    {"GPU (accepted; no effect)", device_flags, sizeof device_flags / sizeof device_flags[0], NULL},
    {"For compatibility (accepted; no effect)", other_flags,
     sizeof other_flags / sizeof other_flags[0], NULL},
};

/* What ignoring would change, and the values with which it changes nothing. */
static const struct {
    const char *name, *harmless, *why;
} refused[] = {
    {"tp-size", "1", "spillway runs on one device; leave it out or give 1"},
    {"dp-size", "1", "spillway runs one copy of the model; leave it out or give 1"},
    {"pp-size", "1", "spillway runs on one device; leave it out or give 1"},
    {"ep-size", "1", "spillway runs on one device; leave it out or give 1"},
    {"nnodes", "1", "spillway runs on one machine"},
    {"node-rank", "0", "spillway runs on one machine"},
    {"dist-init-addr", NULL, "spillway runs on one machine"},
    {"disaggregation-mode", "null", "prefill and decode run in one process"},
    {"enable-lora", NULL, "adapters are not supported, and without them answers would differ"},
    {"lora-paths", NULL, "adapters are not supported, and without them answers would differ"},
    {"quantization-param-path", NULL, "fp8 scales come from the values themselves, not a file"},
    {"is-embedding", NULL, "embedding models are not supported"},
    {"skip-tokenizer-init", NULL, "requests must carry text, so the tokenizer is needed"},
    {"hf-chat-template-name", "default", "give the template's file with --chat-template"},
    {"completion-template", NULL, "completion prompts are taken as they are"},
    {"preferred-sampling-params", "{}", "put the defaults into generation_config.json"},
    {"ssl-keyfile", NULL, "there is no TLS inside; put a proxy in front"},
    {"ssl-certfile", NULL, "there is no TLS inside; put a proxy in front"},
};

static bool in_list(const char *list, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = list; p && *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, text, n) == 0) {
            return true;
        }
        p += len + (p[len] == '|');
    }
    return false;
}

enum status compat_check(const struct flag_result *r, struct error *err)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *text = flags_text(r, refused[i].name);
        if (text && !in_list(refused[i].harmless, text)) {
            return error_set_param(err, ERR_USAGE, refused[i].name, "--%s%s%s: %s", refused[i].name,
                                   text[0] ? " " : "", text, refused[i].why);
        }
    }
    return OK;
}
