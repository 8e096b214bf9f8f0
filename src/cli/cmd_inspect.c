/* cmd_inspect.c - `spillway inspect`: what is in a model folder, without loading it.
 *
 * Place: cli. Reads configs and tensor headers; a checkpoint of a hundred thousand tensors takes a
 *        fraction of a second. A model that spillway cannot run is described as far as it can be,
 *        and the exit code is that of a bad model. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/inspect_report.h"
#include "cli/model_setup.h"

struct inspect_options {
    const char *model_path;
    const char *override_args;
    bool with_tensors, as_json, check;
};

static const struct flag flags[] = {
    {.name = "model-path",
     .aliases = "model",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct inspect_options, model_path),
     .metavar = "PATH",
     .help = "model folder, or org/name[@revision] in the Hugging Face cache; also as an argument"},
    {.name = "tensors",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct inspect_options, with_tensors),
     .help = "list every tensor with type, shape, bytes and file"},
    {.name = "check",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct inspect_options, check),
     .help = "read and check scales, zero points and orders of all quantised matrices"},
    {.name = "json",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct inspect_options, as_json),
     .help = "print one JSON object"},
    {.name = "json-model-override-args",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct inspect_options, override_args),
     .metavar = "JSON",
     .help = "an object that is laid over config.json"},
};

static enum status print_report(const struct inspect_report *r, const struct inspect_options *o,
                                struct error *err)
{
    struct buf out;
    enum status rc = OK;

    buf_init(&out);
    if (o->as_json) {
        rc = inspect_print_json(&out, r, o->with_tensors, err);
    } else {
        inspect_print_text(&out, r, o->with_tensors);
    }
    if (rc == OK && !buf_ok(&out)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the report");
    }
    if (rc == OK && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0)) {
        rc = error_set(err, ERR_IO, "cannot write the report");
    }
    buf_release(&out);
    return rc;
}

static enum status inspect(const struct inspect_options *o, const struct log *log,
                           struct error *err)
{
    struct json_object *override = NULL;
    struct checkpoint *c = NULL;
    struct inspect_report r = {0};
    enum status rc = OK;

    if (o->override_args) {
        rc = json_parse(&override, o->override_args, strlen(o->override_args), err);
        if (rc != OK) {
            error_prefix(err, "--json-model-override-args");
            return ERR_USAGE;
        }
    }
    rc = checkpoint_open(&c, o->model_path, hub_cache_dirs(), log, err);
    if (rc == OK) {
        rc = inspect_gather(&r, c, override, o->check, err);
    }
    if (rc == OK) {
        rc = print_report(&r, o, err);
    }
    if (rc == OK && (r.config_error.code != OK || r.quant_error.code != OK)) {
        *err = r.config_error.code != OK ? r.config_error : r.quant_error;
        rc = err->code;
    }
    inspect_report_release(&r);
    checkpoint_close(c);
    json_object_put(override);
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct inspect_options o = {0};
    struct flag_group group = {"Flags", flags, sizeof flags / sizeof flags[0], &o};
    struct flag_result parsed = {0};
    struct error err = {0};
    enum status rc = flags_parse(&parsed, &command_inspect, &group, 1, 1, argc, argv, log, &err);

    if (rc == OK && !parsed.help) {
        if (parsed.n_positional > 0) {
            o.model_path = parsed.positional[0];
        }
        rc = o.model_path ? inspect(&o, log, &err)
                          : error_set(&err, ERR_USAGE, "no model given: spillway inspect MODEL");
    }
    flags_release(&parsed);
    if (rc != OK) {
        err.code = rc;
        return command_fail(&err);
    }
    return EXIT_CODE_OK;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "show what is in a model folder: sizes, types, quantisation, memory",
    .examples = "  spillway inspect models/rill\n"
                "  spillway inspect Qwen/Qwen3.5-35B-A3B-GPTQ-Int4 --check\n"
                "  spillway inspect models/rill --json --tensors\n",
    .run = run,
    .arguments = "MODEL",
};
