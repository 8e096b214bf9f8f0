/* chat_template.h - messages to prompt text, by the checkpoint's own Jinja template.
 *
 * Place:  text, on jinja.h. The result is a list of runs for the tokenizer: text that came from the
 *         template is trusted, text that came from the request (messages, tools, kwargs) is not, also
 *         after filters, slices and concatenation. Semantics as transformers sets Jinja2 up:
 *         trim_blocks, lstrip_blocks, loop controls, tojson without HTML escaping and with
 *         ensure_ascii false, raise_exception, strftime_now. */
#ifndef TEXT_CHAT_TEMPLATE_H
#define TEXT_CHAT_TEMPLATE_H

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer.h"

enum {
    TEMPLATE_BYTES_MAX = 1 << 20,
    TEMPLATE_OUTPUT_BYTES_MAX = 64 << 20,
    TEMPLATE_STEPS_MAX = 20 * 1000 * 1000 /* evaluated nodes in one rendering */
};

struct chat_template;

/* Compile. Errors carry the line of the template. */
enum status chat_template_new(struct chat_template **out, const char *text, size_t len,
                              struct error *err);
/* Find it in a model folder: chat_template.jinja, else tokenizer_config.json's chat_template (string,
 * or list of {name, template}: "default"). ERR_NOT_FOUND when there is none. Also keeps bos_token,
 * eos_token, ... of tokenizer_config.json as template variables. override_path: a template file that
 * is used instead (.jinja, or .json with a chat_template); model_dir may then be NULL. */
enum status chat_template_load(struct chat_template **out, const char *model_dir,
                               const char *override_path, struct error *err);
void chat_template_free(struct chat_template *t);
const char *chat_template_source(const struct chat_template *t);

/* What the template understands, found by looking at its text: for the automatic parsers. */
struct chat_template_traits {
    bool has_thinking;        /* mentions <think> */
    bool has_qwen_xml_tools;  /* mentions <function= */
    bool has_enable_thinking; /* a switch exists */
};
struct chat_template_traits chat_template_traits(const struct chat_template *t);

/* Whether the template's text reads the variable: a client's chat_template_kwargs that no template
 * looks at are worth a 400. */
bool chat_template_reads(const struct chat_template *t, const char *variable);

struct rendered { /* release with rendered_release */
    struct buf text;
    struct text_run *runs; /* slices of text.data, adjacent runs of one kind joined */
    size_t n_runs;
};
void rendered_release(struct rendered *r);

/* messages: array; tools: array or NULL; kwargs: object of extra variables or NULL. now_s: the time
 * that strftime_now prints. A message-level fault, raise_exception included, is ERR_BAD_REQUEST with
 * the template's text, after "messages[2]: " when the template was at that message; limits give
 * ERR_LIMIT. kwargs may not name messages, tools, add_generation_prompt, chat_template, tokenize or a
 * variable that comes from the checkpoint: ERR_BAD_REQUEST. Thread-safe on a shared template.
 *
 * A message's role is trusted when it is one of the words system, user, assistant, tool, function,
 * developer: templates build control tokens around it ("<|user|>"), and none of these words is one. */
struct render_options {
    struct json_object *messages, *tools, *kwargs;
    bool add_generation_prompt;
    int64_t now_s;
    size_t index_shift; /* what errors add to the index of a message past the first */
};
enum status chat_template_render(struct rendered *out, const struct chat_template *t,
                                 const struct render_options *o, struct error *err);

#endif
