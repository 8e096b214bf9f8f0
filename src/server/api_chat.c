/* api_chat.c - POST /v1/chat/completions: messages -> prompt text -> token ids -> engine.
 *
 * Place: server. Everything that can be wrong with a request is found here, before the first byte of
 *        an answer: so it is a status of its own and never an event in a stream. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/api.h"
#include "server/chat_output.h"
#include "text/chat_messages.h"

/* --- the prompt --------------------------------------------------------------------------------- */

/* The text of the last message, trimmed; {NULL, 0} when it is not an assistant's text. */
static struct str last_assistant_text(struct json_object *messages)
{
    size_t n = json_object_array_length(messages);
    struct json_object *last = n > 0 ? json_object_array_get_idx(messages, n - 1) : NULL;
    struct json_object *role = json_get(last, "role"), *content = json_get(last, "content");
    struct str s;

    if (!json_object_is_type(role, json_type_string) ||
        strcmp(json_object_get_string(role), "assistant") != 0 ||
        !json_object_is_type(content, json_type_string)) {
        return (struct str){NULL, 0};
    }
    s = json_str(content);
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[0]) && s.ptr[0] != '\0') {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[s.len - 1]) && s.ptr[s.len - 1] != '\0') {
        s.len--;
    }
    return s;
}

/* Cut the runs at byte `end` of the text. */
static void cut_runs(struct rendered *r, size_t end)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        size_t start = (size_t)(r->runs[i].text.ptr - r->text.data);
        if (start >= end) {
            r->n_runs = i;
            return;
        }
        if (start + r->runs[i].text.len > end) {
            r->runs[i].text.len = end - start;
        }
    }
}

/* continue_final_message: the prompt ends where the last message's text ends. */
static enum status cut_after_last_message(struct rendered *r, struct json_object *messages,
                                          struct error *err)
{
    struct str last = last_assistant_text(messages);

    if (last.len == 0) {
        return error_set_param(err, ERR_BAD_REQUEST, "continue_final_message",
                               "'continue_final_message' needs an assistant's text as the last "
                               "message");
    }
    for (size_t end = r->text.len; end >= last.len; end--) {
        if (memcmp(r->text.data + end - last.len, last.ptr, last.len) == 0) {
            cut_runs(r, end);
            return OK;
        }
    }
    return error_set_param(err, ERR_BAD_REQUEST, "continue_final_message",
                           "the model's template does not show the last message as it is, so it "
                           "cannot be continued");
}

static bool has_tag(struct str s)
{
    return str_find(s, STR("<think>")) != SIZE_MAX || str_find(s, STR("</think>")) != SIZE_MAX;
}

/* Where the answer begins: by the last thinking tag that the template itself wrote. */
static enum reasoning_state start_of(const struct rendered *r, bool continues)
{
    for (size_t i = r->n_runs; i-- > 0;) {
        enum reasoning_state start;
        if (!r->runs[i].is_trusted || !has_tag(r->runs[i].text)) {
            continue;
        }
        start = reasoning_start_of_prompt(r->runs[i].text);
        if (start == REASONING_INSIDE || i + 1 == r->n_runs) {
            return continues && start != REASONING_INSIDE ? REASONING_CONTENT : start;
        }
        break;
    }
    return continues ? REASONING_CONTENT : REASONING_MAYBE_OPEN;
}

struct prompt {
    struct token_ids ids;
    enum reasoning_state start;
};

static enum status render(struct rendered *out, const struct server *s, const struct params *p,
                          struct error *err)
{
    struct json_object *messages = NULL;
    struct render_options o = {
        .tools = p->tool_choice == TOOL_CHOICE_NONE ? NULL : p->tools,
        .kwargs = p->template_kwargs,
        .add_generation_prompt = !p->continue_final_message,
        .now_s = clock_wall_s(),
    };
    enum status rc = chat_messages_normalise(&messages, p->messages, err);

    if (rc != OK) {
        return rc;
    }
    o.messages = messages;
    o.index_shift = json_object_array_length(p->messages) - json_object_array_length(messages);
    rc = chat_template_render(out, s->model.chat_template, &o, err);
    if (rc == OK && p->continue_final_message) {
        rc = cut_after_last_message(out, messages, err);
        if (rc != OK) {
            rendered_release(out);
        }
    }
    json_object_put(messages);
    return rc;
}

static enum status make_prompt(struct prompt *out, const struct server *s, const struct params *p,
                               struct error *err)
{
    struct rendered r = {0};
    enum status rc = render(&r, s, p, err);

    if (rc != OK) {
        if (err->code == ERR_BAD_REQUEST && err->param[0] == '\0') {
            snprintf(err->param, sizeof err->param, "messages");
        }
        return rc;
    }
    out->start = start_of(&r, p->continue_final_message);
    rc = tokenizer_encode(&out->ids, s->model.tokenizer, r.runs, r.n_runs, err);
    if (rc == OK && out->ids.n == 0) {
        rc = error_set_param(err, ERR_BAD_REQUEST, "messages", "the prompt is empty");
    }
    rendered_release(&r);
    return rc;
}

/* --- the request --------------------------------------------------------------------------------- */

static void choose_output(struct chat_output_options *out, const struct server *s,
                          const struct params *p, enum reasoning_state start)
{
    struct chat_template_traits traits = chat_template_traits(s->model.chat_template);
    enum parser_choice reasoning = s->o.reasoning_parser, tools = s->o.tool_parser;

    out->start = start;
    out->splits_reasoning =
        p->separate_reasoning &&
        (reasoning == PARSER_QWEN || (reasoning == PARSER_AUTO && traits.has_thinking));
    out->parses_tools =
        p->tools && p->tool_choice != TOOL_CHOICE_NONE &&
        (tools == PARSER_QWEN || (tools == PARSER_AUTO && traits.has_qwen_xml_tools));
}

/* Prompt, context and parsers are right: hand all choices over. */
static enum status submit(struct job *j, const struct prompt *prompt, struct error *err)
{
    struct chat_output_options o;
    enum status rc;

    choose_output(&o, j->server, &j->params, prompt->start);
    j->n_prompt = prompt->ids.n;
    rc = chat_output_init(j, &o, err);
    for (size_t i = 0; i < j->n_choices && rc == OK; i++) {
        rc = job_submit(j, i, &prompt->ids, err);
    }
    return rc;
}

static void start_job(struct conn *c, struct params *p, struct json_object *body,
                      const struct prompt *prompt)
{
    struct error err = {0};
    struct job *j = job_new(c, &chat_job_api, p, body, p->n);

    if (!j) {
        conn_reply_error(c, &(struct reply_error){.status = 503, .message = "out of memory"});
        return;
    }
    if (submit(j, prompt, &err) != OK) {
        job_abandon(j);
        conn_reply_failure(c, &err);
        return;
    }
    if (j->params.stream) {
        conn_stream_begin(c);
    }
}

void api_chat_completions(struct server *s, struct conn *c)
{
    struct json_object *body = api_read_body(c);
    struct prompt prompt = {0};
    struct params p;
    struct error err = {0};
    const char *code = NULL;

    if (!body) {
        return;
    }
    if (api_read_params(&p, s, API_CHAT, body, &err) != OK) {
        json_object_put(body);
        conn_reply_failure(c, &err);
        return;
    }
    if (!api_check_model(s, c, p.model)) {
        goto done;
    }
    if (!s->model.chat_template) {
        error_set(&err, ERR_BAD_REQUEST,
                  "this model has no chat template; use /v1/completions instead");
        goto refuse;
    }
    if (make_prompt(&prompt, s, &p, &err) != OK) {
        goto refuse;
    }
    if (job_check_context(s, &p, prompt.ids.n, "messages", &err) != OK) {
        code = "context_length_exceeded";
        goto refuse;
    }
    start_job(c, &p, body, &prompt);
    token_ids_release(&prompt.ids);
    return;

refuse:
    conn_reply_error(c, &(struct reply_error){.status = reply_status_of(err.code),
                                              .code = code,
                                              .param = err.param,
                                              .message = err.text});
done:
    token_ids_release(&prompt.ids);
    params_release(&p);
    json_object_put(body);
}
