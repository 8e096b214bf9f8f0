/* generator.h - a model in this process that answers one request at a time.
 *
 * Place: cli; what run and chat share: setup, engine, port, and the loop that turns events into text.
 * Thread: one; the engine's own thread computes. */
#ifndef CLI_GENERATOR_H
#define CLI_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/model_setup.h"
#include "runtime/engine.h"

struct generator {
    struct model_setup setup;
    struct engine *engine;
    struct engine_port *port;
};

/* On failure *g holds nothing. */
struct generator_options {
    bool want_template; /* not for raw prompts */
    bool verbose;       /* print settings and plan */
};
enum status generator_open(struct generator *g, const struct model_flags *f,
                           const struct generator_options *options, const struct log *log,
                           struct error *err);
void generator_close(struct generator *g);

/* Where the text goes, as it comes. is_interrupted may be NULL; it is asked about 20 times a second. */
struct generator_sink {
    void (*text)(void *ctx, struct str text, bool is_thinking);
    bool (*is_interrupted)(void *ctx);
    void *ctx;
};

struct generator_request {
    struct json_object *messages; /* for the chat template; or NULL, then `raw` is the prompt */
    struct json_object *kwargs;   /* of the template, or NULL */
    struct str raw;
    struct sampling sampling;
    size_t max_tokens; /* 0: what the context leaves */
};

struct generator_result { /* zeroed; release with generator_result_release */
    struct buf thinking, content;
    enum finish_reason reason;
    size_t n_prompt, n_output, n_cached;
    double prefill_s, decode_s;
};
void generator_result_release(struct generator_result *r);

enum status generator_run(struct generator *g, const struct generator_request *r,
                          const struct generator_sink *sink, struct generator_result *out,
                          struct error *err);

/* "[23 tokens, 41.2 tok/s; prompt 112 tokens in 0.31 s]" */
void generator_stats_text(char *out, size_t n, const struct generator_result *r);

/* Text from a model, without what a terminal would obey: control characters other than newline and
 * tab become U+FFFD. Appends. */
void terminal_text(struct buf *out, struct str text);

/* The folder of the demo model: beside the program (../models/rill, ../share/spillway/models/rill), in
 * the folder of the sources, or in the present folder. False: not found. */
bool demo_model_find(char *out, size_t n);

#endif
