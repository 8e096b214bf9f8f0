/* server_api_test.c - chat, completions, tokenize over a scripted engine with the demo model's tokenizer
 * and template. Streams are joined and compared with whole answers. */
#include "server/server_rig.h"

static struct tokenizer *tokenizer;
static struct chat_template *template;

static int load(void **state)
{
    struct error err = {0};

    (void)state;
    if (tokenizer_load(&tokenizer, "models/rill/tokenizer.json", &err) != OK ||
        chat_template_load(&template, "models/rill", NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    chat_template_free(template);
    return 0;
}

static void start(struct rig *r, const struct server_options *o, const char *const *pieces)
{
    rig_start(r, o);
    r->engine.pieces = pieces;
    r->model.tokenizer = tokenizer;
    r->model.chat_template = template;
    rig_set_ready(r);
    while (ask_status(r, "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n") != 200) {
    }
}

/* --- answers in one form, whether they came whole or in pieces --------------------------------------- */

enum { CALLS_MAX = 4, ANSWER_CHOICES_MAX = 4 };

struct joined {
    struct buf role, content, reasoning, finish, matched;
    bool has_content, has_reasoning;
    struct {
        struct buf id, name, arguments;
    } calls[CALLS_MAX];
    size_t n_calls, n_logprobs, n_chunks;
};

struct answer {
    int status;
    struct joined choices[ANSWER_CHOICES_MAX];
    size_t n_choices;
    char usage[256]; /* as it stands, "" when there is none */
    size_t n_usage,
        n_events; /* chunks with a usage that is not null; all events but the end mark */
    bool has_error;
    struct buf body; /* raw */
};

static void answer_release(struct answer *a)
{
    for (size_t i = 0; i < ANSWER_CHOICES_MAX; i++) {
        struct joined *c = &a->choices[i];
        buf_release(&c->role);
        buf_release(&c->content);
        buf_release(&c->reasoning);
        buf_release(&c->finish);
        buf_release(&c->matched);
        for (size_t k = 0; k < CALLS_MAX; k++) {
            buf_release(&c->calls[k].id);
            buf_release(&c->calls[k].name);
            buf_release(&c->calls[k].arguments);
        }
    }
    buf_release(&a->body);
}

static bool add_string(struct buf *out, struct json_object *o, const char *key)
{
    struct json_object *v = json_get(o, key);

    if (json_object_is_type(v, json_type_string)) {
        buf_append(out, json_object_get_string(v), (size_t)json_object_get_string_len(v));
        return true;
    }
    return false;
}

static void add_calls(struct joined *c, struct json_object *calls)
{
    size_t n = json_object_is_type(calls, json_type_array) ? json_object_array_length(calls) : 0;

    for (size_t i = 0; i < n; i++) {
        struct json_object *call = json_object_array_get_idx(calls, i);
        struct json_object *f = json_get(call, "function");
        size_t at = (size_t)json_object_get_int(json_get(call, "index"));
        assert_true(at < CALLS_MAX);
        c->n_calls = at + 1 > c->n_calls ? at + 1 : c->n_calls;
        assert_int_equal(at, c->n_calls - 1);
        add_string(&c->calls[at].id, call, "id");
        add_string(&c->calls[at].name, f, "name");
        add_string(&c->calls[at].arguments, f, "arguments");
    }
}

static void add_choice(struct answer *a, struct json_object *choice)
{
    size_t at = (size_t)json_object_get_int(json_get(choice, "index"));
    struct json_object *m = json_get(choice, "delta"), *list;
    struct joined *c = &a->choices[at];

    assert_true(at < ANSWER_CHOICES_MAX);
    a->n_choices = at + 1 > a->n_choices ? at + 1 : a->n_choices;
    m = m ? m : json_get(choice, "message");
    m = m ? m : choice; /* a completion's text stands in the choice */
    c->n_chunks++;
    add_string(&c->role, m, "role");
    c->has_content |= add_string(&c->content, m, "content") || add_string(&c->content, m, "text");
    c->has_reasoning |= add_string(&c->reasoning, m, "reasoning_content");
    add_string(&c->finish, choice, "finish_reason");
    if (json_get(choice, "matched_stop")) {
        json_write(&c->matched, json_get(choice, "matched_stop"));
    }
    add_calls(c, json_get(m, "tool_calls"));
    list = json_get(json_get(choice, "logprobs"), "content");
    list = list ? list : json_get(json_get(choice, "logprobs"), "tokens");
    c->n_logprobs += list ? json_object_array_length(list) : 0;
}

static void add_object(struct answer *a, const char *text, size_t len)
{
    struct json_object *o = NULL, *choices, *usage;

    assert_int_equal(json_parse(&o, text, len, NULL), OK);
    a->has_error |= json_has(o, "error");
    usage = json_get(o, "usage");
    if (usage) {
        struct buf b;
        buf_init(&b);
        json_write(&b, usage);
        snprintf(a->usage, sizeof a->usage, "%s", buf_cstr(&b));
        buf_release(&b);
        a->n_usage++;
    }
    if (!a->has_error) {
        assert_true(json_has(o, "choices"));
        assert_string_equal(json_object_get_string(json_get(o, "model")), "org/puppet");
    }
    choices = json_get(o, "choices");
    for (size_t i = 0; choices && i < json_object_array_length(choices); i++) {
        add_choice(a, json_object_array_get_idx(choices, i));
    }
    json_object_put(o);
}

static void add_events(struct answer *a)
{
    const char *at = buf_cstr(&a->body);
    bool is_done = false;

    while (*at) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_memory_equal(at, "data: ", 6);
        assert_false(is_done); /* nothing after the end mark */
        at += 6;
        if (strncmp(at, "[DONE]", 6) == 0) {
            is_done = true;
        } else {
            add_object(a, at, (size_t)(end - at));
            a->n_events++;
        }
        at = end + 2;
    }
    assert_true(is_done);
}

static void ask_api(const struct rig *r, const char *path, const char *body, struct answer *out)
{
    struct client c;
    struct response response;

    memset(out, 0, sizeof *out);
    client_open(&c, r);
    client_post(&c, &response, path, body);
    out->status = response.status;
    out->body = response.body;
    response.body = (struct buf){0};
    if (out->status == 200 &&
        strcmp(header_of(&response, "Content-Type"), "application/json") != 0) {
        add_events(out);
    } else if (out->status == 200 && strstr(buf_cstr(&out->body), "\"choices\"")) {
        add_object(out, buf_cstr(&out->body), out->body.len);
    }
    response_release(&response);
    client_close(&c);
}

/* members: what stands beside the messages, with a comma after it, or "". */
static void chat(const struct rig *r, const char *members, bool stream, struct answer *out)
{
    char body[8192];

    snprintf(body, sizeof body,
             "{%s\"stream\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}", members,
             stream ? "true" : "false");
    ask_api(r, "/v1/chat/completions", body, out);
    if (out->status != 200) {
        fail_msg("%s -> %d %s", body, out->status, buf_cstr(&out->body));
    }
}

static void expect_text(const struct rig *r, const char *members, const char *reasoning,
                        const char *content)
{
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        chat(r, members, stream == 1, &a);
        assert_int_equal(a.n_choices, 1);
        assert_string_equal(buf_cstr(&a.choices[0].role), "assistant");
        assert_string_equal(buf_cstr(&a.choices[0].reasoning), reasoning);
        assert_string_equal(buf_cstr(&a.choices[0].content), content);
        assert_int_equal(a.choices[0].has_reasoning, reasoning[0] != '\0');
        assert_string_equal(buf_cstr(&a.choices[0].finish), "stop");
        answer_release(&a);
    }
}

#define KWARGS(text) "\"chat_template_kwargs\":{" text "},"

static void thinking_follows_the_prompt(void **state)
{
    static const char *const plain[] = {"HEL", "LO", NULL};
    static const char *const thought[] = {"I ", "see.\n", "</th", "ink>", "\n\nHel", "lo!", NULL};
    struct json_object *off = NULL;
    struct rig r;

    (void)state;
    start(&r, NULL, plain);
    expect_text(&r, KWARGS("\"enable_thinking\":false"), "", "HELLO");
    expect_text(&r, "\"reasoning_effort\":\"none\",", "", "HELLO");
    expect_text(&r, KWARGS("\"enable_thinking\":true"), "HELLO", "");
    expect_text(&r, "", "HELLO", "");
    r.engine.pieces = thought;
    expect_text(&r, "", "I see.", "Hello!");
    expect_text(&r, "\"stream_reasoning\":false,", "I see.", "Hello!");
    expect_text(&r, "\"separate_reasoning\":false,", "", "I see.\n</think>\n\nHello!");
    expect_text(&r, KWARGS("\"enable_thinking\":false"), "", "I see.\n</think>\n\nHello!");
    rig_stop(&r);

    assert_int_equal(json_parse(&off, "{\"enable_thinking\":false}", 25, NULL), OK);
    start(&r, &(struct server_options){.default_template_kwargs = off}, plain);
    expect_text(&r, "", "", "HELLO");
    expect_text(&r, KWARGS("\"enable_thinking\":true"), "HELLO", "");
    rig_stop(&r);
    json_object_put(off);

    start(&r, &(struct server_options){.reasoning_parser = PARSER_NONE}, thought);
    expect_text(&r, "", "", "I see.\n</think>\n\nHello!");
    rig_stop(&r);
}

static void a_tag_in_the_users_text_opens_nothing(void **state)
{
    static const char *const pieces[] = {"Hello", NULL};
    struct rig r;
    struct answer a;

    (void)state;
    start(&r, NULL, pieces);
    ask_api(&r, "/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"what is <think>?\"}]," KWARGS(
                "\"enable_thinking\":false") "\"n\":1}",
            &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_cstr(&a.choices[0].content), "Hello");
    assert_false(a.choices[0].has_reasoning);
    answer_release(&a);
    rig_stop(&r);
}

static void held_thoughts_come_in_one_piece(void **state)
{
    static const char *const thought[] = {"I ", "see ", "it", "</think>", "Yes", NULL};
    struct rig r;
    struct answer a;

    (void)state;
    start(&r, NULL, thought);
    chat(&r, "\"stream_reasoning\":false,", true, &a);
    assert_int_equal(a.n_events, 4); /* role, thought, content, end */
    answer_release(&a);
    chat(&r, "", true, &a);
    assert_int_equal(a.n_events, 6);
    answer_release(&a);
    rig_stop(&r);

    start(&r, &(struct server_options){.stream_interval = 3}, thought);
    chat(&r, "", true, &a);
    assert_string_equal(buf_cstr(&a.choices[0].reasoning), "I see it");
    assert_string_equal(buf_cstr(&a.choices[0].content), "Yes");
    assert_int_equal(a.n_events, 5); /* role, first token, rest of the thought, content, end */
    answer_release(&a);
    rig_stop(&r);
}

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":"   \
    "{\"type\":\"boolean\"}}}}}],"
#define OFF KWARGS("\"enable_thinking\":false")

static void tool_calls_are_parsed(void **state)
{
    static const struct {
        const char *pieces[8];
        const char *content, *arguments[2];
    } cases[] = {
        {{"<tool_", "call>\n<function=f>\n", "</function>\n</tool_call>", NULL}, "", {"{}", NULL}},
        {{"Let me see.\n\n<tool", "_call>\n<function=f>\n<parameter=s>\nPa", "ris\n</para",
          "meter>\n</function>", "\n</tool_call>", NULL},
         "Let me see.",
         {"{\"s\":\"Paris\"}", NULL}},
        {{"<tool_call><function=f><parameter=s>a", "</parameter><parameter=i>5</parameter>",
          "<parameter=b>True</parameter></function></tool_call>", NULL},
         "",
         {"{\"s\":\"a\",\"i\":5,\"b\":true}", NULL}},
        {{"<tool_call><function=f><parameter=i>1</parameter></function></tool_call>\n",
          "<tool_call>\n<function=f>\n<parameter=i>\n2\n</parameter>\n</function>\n</tool_call>",
          NULL},
         "",
         {"{\"i\":1}", "{\"i\":2}"}},
    };
    struct rig r;

    (void)state;
    start(&r, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int stream = 0; stream < 2; stream++) {
            struct answer a;
            const struct joined *c = &a.choices[0];
            r.engine.pieces = cases[i].pieces;
            chat(&r, TOOLS OFF, stream == 1, &a);
            assert_string_equal(buf_cstr(&a.choices[0].content), cases[i].content);
            assert_string_equal(buf_cstr(&a.choices[0].finish), "tool_calls");
            assert_int_equal(c->n_calls, cases[i].arguments[1] ? 2 : 1);
            for (size_t k = 0; k < c->n_calls; k++) {
                assert_string_equal(buf_cstr(&a.choices[0].calls[k].name), "f");
                assert_string_equal(buf_cstr(&a.choices[0].calls[k].arguments),
                                    cases[i].arguments[k]);
                assert_int_equal(c->calls[k].id.len, 29);
                assert_memory_equal(c->calls[k].id.data, "call_", 5);
            }
            if (cases[i].content[0] == '\0') { /* no empty content before a call, null when whole */
                assert_false(c->has_content);
            }
            answer_release(&a);
        }
    }
    rig_stop(&r);
}

static void calls_stay_text_where_they_are_not_wanted(void **state)
{
    static const char *const pieces[] = {"<tool_call><function=f></function></tool_call>", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    expect_text(&r, OFF, "", pieces[0]);
    expect_text(&r, TOOLS OFF "\"tool_choice\":\"none\",", "", pieces[0]);
    rig_stop(&r);
    start(&r, &(struct server_options){.tool_parser = PARSER_NONE}, pieces);
    expect_text(&r, TOOLS OFF, "", pieces[0]);
    rig_stop(&r);
}

static void a_call_ends_an_open_thought(void **state)
{
    static const char *const pieces[] = {"I need it.\n", "<tool_call><function=f>", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        chat(&r, TOOLS, stream == 1, &a);
        assert_string_equal(buf_cstr(&a.choices[0].reasoning), "I need it.");
        assert_string_equal(buf_cstr(&a.choices[0].calls[0].arguments), "{}");
        assert_string_equal(buf_cstr(&a.choices[0].finish), "tool_calls");
        answer_release(&a);
    }
    r.engine.reason = FINISH_LENGTH; /* cut in a call: the cap ended it */
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        chat(&r, TOOLS, stream == 1, &a);
        assert_string_equal(buf_cstr(&a.choices[0].finish), "length");
        answer_release(&a);
    }
    rig_stop(&r);
}

static void own_messages_are_accepted_back(void **state)
{
    static const char *const messages[] = {
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"call_1\","
        "\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"i\\\":1}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"5\"}",
        "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"x\"},"
        "{\"role\":\"user\",\"content\":\"and\"}",
        "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"\"}",
    };
    static const char *const pieces[] = {"ok", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char body[2048];
        struct answer a;
        snprintf(body, sizeof body,
                 "{" TOOLS "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},%s]}",
                 messages[i]);
        ask_api(&r, "/v1/chat/completions", body, &a);
        if (a.status != 200) {
            fail_msg("%s: %s", messages[i], buf_cstr(&a.body));
        }
        answer_release(&a);
    }
    rig_stop(&r);
}

/* --- usage, choices, log-probabilities --------------------------------------------------------------- */

static void usage_comes_when_asked_for(void **state)
{
    static const char *const pieces[] = {"a", "b", "c</think>d", NULL};
    struct rig r;
    struct answer whole, a;

    (void)state;
    start(&r, NULL, pieces);
    chat(&r, "", false, &whole);
    assert_non_null(strstr(whole.usage, "\"completion_tokens\":4,"));
    assert_non_null(strstr(whole.usage, "\"reasoning_tokens\":3"));
    chat(&r, "", true, &a);
    assert_int_equal(a.n_usage, 0);
    answer_release(&a);
    chat(&r, "\"stream_options\":{\"include_usage\":false},", true, &a);
    assert_int_equal(a.n_usage, 0);
    answer_release(&a);
    chat(&r, "\"stream_options\":{\"include_usage\":true},", true, &a);
    assert_int_equal(a.n_usage, 1);
    assert_string_equal(a.usage, whole.usage);
    assert_non_null(strstr(buf_cstr(&a.body), "\"choices\":[],\"usage\":{"));
    answer_release(&a);
    chat(&r, "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},", true,
         &a);
    assert_int_equal(a.n_usage, a.n_events);
    assert_string_equal(a.usage, whole.usage);
    answer_release(&a);
    answer_release(&whole);
    rig_stop(&r);
}

static void choices_differ_by_their_seeds(void **state)
{
    static const char *const pieces[] = {"a", "b", NULL};
    struct rig r;

    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        start(&r, NULL, pieces);
        chat(&r, OFF "\"n\":3,\"seed\":40,", stream == 1, &a);
        assert_int_equal(a.n_choices, 3);
        for (size_t i = 0; i < 3; i++) {
            assert_string_equal(buf_cstr(&a.choices[i].content), "ab");
            assert_int_equal(r.engine.seeds[i], 40 + i);
        }
        answer_release(&a);
        rig_stop(&r);
    }
}

static void every_token_has_its_log_probability(void **state)
{
    static const char *const pieces[] = {"", "th", "</think>", "x", "", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        chat(&r, "\"logprobs\":true,\"top_logprobs\":1,", stream == 1, &a);
        assert_int_equal(a.choices[0].n_logprobs, 5);
        assert_non_null(strstr(buf_cstr(&a.body), "\"logprob\":-0.5,\"bytes\":["));
        answer_release(&a);
        ask_api(&r, "/v1/completions",
                stream ? "{\"prompt\":[1],\"logprobs\":1,\"stream\":true}"
                       : "{\"prompt\":[1],\"logprobs\":1}",
                &a);
        assert_int_equal(a.choices[0].n_logprobs, 5);
        assert_non_null(strstr(buf_cstr(&a.body), "\"token_logprobs\":["));
        answer_release(&a);
    }
    rig_stop(&r);
}

static void what_ended_it_is_told(void **state)
{
    static const char *const pieces[] = {"ab", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        r.engine.stop_string = 1;
        r.engine.stop_id = -1;
        chat(&r, "\"stop\":[\"x\",\"\",\"y\\\"\"],", stream == 1, &a);
        assert_int_equal(r.engine.n_stop, 2);
        assert_string_equal(buf_cstr(&a.choices[0].matched), "\"y\\\"\"");
        answer_release(&a);
        r.engine.stop_string = -1;
        r.engine.stop_id = 7;
        chat(&r, "", stream == 1, &a);
        assert_string_equal(buf_cstr(&a.choices[0].matched), "7");
        answer_release(&a);
        r.engine.stop_id = -1;
        r.engine.reason = FINISH_LENGTH;
        chat(&r, "\"max_completion_tokens\":1,\"max_tokens\":9,", stream == 1, &a);
        assert_int_equal(r.engine.max_tokens, 1);
        assert_string_equal(buf_cstr(&a.choices[0].finish), "length");
        assert_int_equal(a.choices[0].matched.len, 0);
        answer_release(&a);
        r.engine.reason = FINISH_STOP;
    }
    rig_stop(&r);
}

/* --- refusals -------------------------------------------------------------------------------------- */

/* {"error":{...}} with these members; NULL: not compared, "": null */
static void expect_refusal(const struct rig *r, const char *path, const char *body, int status,
                           const char *param, const char *code)
{
    struct json_object *o = NULL, *e;
    struct answer a;

    ask_api(r, path, body, &a);
    if (a.status != status) {
        fail_msg("%s -> %d %s", body, a.status, buf_cstr(&a.body));
    }
    assert_int_equal(json_parse(&o, a.body.data, a.body.len, NULL), OK);
    e = json_get(o, "error");
    assert_non_null(json_get(e, "message"));
    assert_non_null(json_get(e, "type"));
    assert_true(json_has(e, "param") && json_has(e, "code"));
    assert_string_equal(json_object_get_string(json_get(o, "object")), "error");
    assert_string_equal(json_object_get_string(json_get(o, "message")),
                        json_object_get_string(json_get(e, "message")));
    assert_int_equal(json_object_get_int(json_get(o, "code")), status);
    if (param) {
        const char *given = json_object_get_string(json_get(e, "param"));
        if (strcmp(given ? given : "", param) != 0) {
            fail_msg("%s names '%s'", body, given);
        }
    }
    if (code) {
        const char *given = json_object_get_string(json_get(e, "code"));
        assert_string_equal(given ? given : "", code);
    }
    json_object_put(o);
    answer_release(&a);
}

static void degenerate_bodies_are_refused(void **state)
{
    static const struct {
        const char *body;
        const char *param;
    } cases[] = {
        {"{}", "messages"},
        {"{\"messages\":null}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":{}}", "messages"},
        {"{\"messages\":\"Hi\"}", "messages"},
        {"{\"messages\":[null]}", "messages[0]"},
        {"{\"messages\":[5]}", "messages[0]"},
        {"{\"messages\":[{}]}", NULL},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"bogus\",\"content\":\"x\"}]}", NULL},
        {"{\"messages\":[{\"role\":5,\"content\":\"x\"}]}", NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
         "\"url\":"
         "\"http://localhost/x\"}}]}]}",
         NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":-1}",
         "temperature"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":0}", "max_tokens"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":0}", "n"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template\":\"x\"}",
         "chat_template"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{"
         "\"tokenize\":1}}",
         "chat_template_kwargs.tokenize"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\"}",
         "tool_choice"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":"
         "\"json_object\"}}",
         "response_format"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}",
         "continue_final_message"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logit_bias\":{\"99999\":1}}",
         "logit_bias"},
        {"[]", ""},
        {"5", ""},
        {"", ""},
        {"{\"messages\":", ""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", ""},
    };
    static const char *const pieces[] = {"x", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char streamed[1024];
        expect_refusal(&r, "/v1/chat/completions", cases[i].body, 400, cases[i].param, NULL);
        if (cases[i].body[0] == '{' && cases[i].body[1] == '"') {
            snprintf(streamed, sizeof streamed, "{\"stream\":true,%s", cases[i].body + 1);
            expect_refusal(&r, "/v1/chat/completions", streamed, 400, cases[i].param, NULL);
        }
    }
    assert_int_equal(r.engine.n_submitted, 0);
    rig_stop(&r);
}

static void prompts_beyond_the_context_are_refused(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    static const struct {
        size_t n_prompt;
        const char *members;
        int status;
    } cases[] = {
        {CONTEXT - 1, "", 400}, /* 16 tokens of output are asked for by default */
        {CONTEXT - 16, "", 200},
        {CONTEXT - 15, "", 400},
        {CONTEXT - 1, "\"max_tokens\":1,", 200},
        {CONTEXT - 1, "\"max_tokens\":2,", 400},
        {CONTEXT, "\"max_tokens\":1,", 400},
        {CONTEXT + 1, "\"max_tokens\":1,", 400},
        {CONTEXT * 10, "\"max_tokens\":1,", 400},
    };
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b;
        struct answer a;
        size_t before = r.engine.n_submitted;
        buf_init(&b);
        buf_appendf(&b, "{%s\"prompt\":[1", cases[i].members);
        for (size_t k = 1; k < cases[i].n_prompt; k++) {
            buf_append_str(&b, ",1");
        }
        buf_append_str(&b, "]}");
        if (cases[i].status == 400) {
            expect_refusal(&r, "/v1/completions", buf_cstr(&b), 400, "prompt",
                           "context_length_exceeded");
            assert_int_equal(r.engine.n_submitted, before);
        }
        ask_api(&r, "/v1/completions", buf_cstr(&b), &a);
        assert_int_equal(a.status, cases[i].status);
        if (a.status == 400) { /* both numbers are named */
            char numbers[2][16];
            snprintf(numbers[0], sizeof numbers[0], "%zu", cases[i].n_prompt);
            snprintf(numbers[1], sizeof numbers[1], "%d", CONTEXT);
            assert_non_null(strstr(buf_cstr(&a.body), numbers[0]));
            assert_non_null(strstr(buf_cstr(&a.body), numbers[1]));
        }
        answer_release(&a);
        buf_release(&b);
    }
    rig_stop(&r);
}

static void a_full_queue_is_429(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    struct rig r;
    struct client c;
    struct response a;

    (void)state;
    start(&r, NULL, pieces);
    r.engine.queue_slots = 2;
    r.engine.holds = true;
    client_open(&c, &r);
    client_post(&c, &a, "/v1/completions", "{\"prompt\":[1],\"n\":3}");
    assert_int_equal(a.status, 429);
    assert_string_equal(header_of(&a, "Retry-After"), "1");
    assert_non_null(strstr(buf_cstr(&a.body), "rate_limit_error"));
    response_release(&a);
    wait_count(&r.engine, &r.engine.n_cancelled, 2); /* the two that had found room */
    client_close(&c);
    rig_stop(&r);
}

static void failures_end_one_request_only(void **state)
{
    static const char *const pieces[] = {"part", NULL};
    struct rig r;
    struct answer a;

    (void)state;
    start(&r, NULL, pieces);
    r.engine.fails = true;
    expect_refusal(&r, "/v1/completions", "{\"prompt\":[1]}", 500, "", "");
    chat(&r, OFF, true, &a); /* 200 went out already: an error event, then the end mark */
    assert_true(a.has_error);
    assert_string_equal(buf_cstr(&a.choices[0].content), "part");
    answer_release(&a);
    r.engine.fails = false;
    chat(&r, OFF, true, &a);
    assert_false(a.has_error);
    answer_release(&a);
    rig_stop(&r);
}

static void model_names_are_free_unless_strict(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    static const char *const names[] = {"org/puppet", "default", "ORG/PUPPET", "../../etc/passwd",
                                        ""};
    struct rig r;

    (void)state;
    for (int strict = 0; strict < 2; strict++) {
        start(&r, &(struct server_options){.strict_model_name = strict == 1}, pieces);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char body[256];
            struct answer a;
            snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":[1]}", names[i]);
            if (strict == 1 && i >= 2) {
                expect_refusal(&r, "/v1/completions", body, 404, "model", "model_not_found");
                continue;
            }
            ask_api(&r, "/v1/completions", body, &a);
            assert_int_equal(a.status, 200);
            answer_release(&a);
        }
        rig_stop(&r);
    }
}

/* --- completions, tokenize -------------------------------------------------------------------------- */

static void prompts_come_in_four_forms(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    static const struct {
        const char *body;
        size_t n_choices, n_prompt; /* of the last one */
    } cases[] = {
        {"{\"prompt\":[5,6,7]}", 1, 3},
        {"{\"prompt\":[[5],[6,7]]}", 2, 2},
        {"{\"prompt\":\"<|im_end|>\"}", 1, 1}, /* a control token, not ten characters */
        {"{\"prompt\":[\"<|im_end|>\",[1,2]]}", 2, 2},
        {"{\"prompt\":[[5],[6]],\"n\":2}", 4, 1},
    };
    static const struct {
        const char *body, *param;
    } bad[] = {
        {"{\"prompt\":\"\"}", "prompt"},          {"{\"prompt\":[\"a\",\"\"]}", "prompt"},
        {"{\"prompt\":[999999]}", "prompt"},      {"{\"prompt\":[-1]}", "prompt"},
        {"{\"prompt\":[[1],[2]],\"n\":65}", "n"}, {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix"},
    };
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a;
        ask_api(&r, "/v1/completions", cases[i].body, &a);
        assert_int_equal(a.status, 200);
        assert_int_equal(a.n_choices, cases[i].n_choices);
        assert_int_equal(r.engine.n_prompt, cases[i].n_prompt);
        answer_release(&a);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect_refusal(&r, "/v1/completions", bad[i].body, 400, bad[i].param, NULL);
    }
    rig_stop(&r);
}

static void echo_repeats_the_prompt(void **state)
{
    static const char *const pieces[] = {" there", NULL};
    struct rig r;

    (void)state;
    start(&r, NULL, pieces);
    for (int stream = 0; stream < 2; stream++) {
        struct answer a;
        ask_api(&r, "/v1/completions",
                stream ? "{\"prompt\":\"Hello\",\"echo\":true,\"stream\":true}"
                       : "{\"prompt\":\"Hello\",\"echo\":true}",
                &a);
        assert_string_equal(buf_cstr(&a.choices[0].content), "Hello there");
        answer_release(&a);
    }
    rig_stop(&r);
}

static void the_last_message_can_be_continued(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    static const char tail[] = "Once upon";
    struct rig r;
    struct answer a;
    struct buf text;

    (void)state;
    start(&r, NULL, pieces);
    ask_api(
        &r, "/v1/chat/completions",
        "{\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Tell\"},"
        "{\"role\":\"assistant\",\"content\":\"Once upon\"}]}",
        &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(buf_cstr(&a.choices[0].content), "x"); /* the thought is over */
    buf_init(&text);
    for (size_t i = 0; i < r.engine.n_prompt; i++) {
        struct str s = tokenizer_bytes(tokenizer, r.engine.prompt[i]);
        buf_append(&text, s.ptr, s.len);
    }
    assert_true(text.len > sizeof tail);
    assert_string_equal(buf_cstr(&text) + text.len - (sizeof tail - 1), tail);
    buf_release(&text);
    answer_release(&a);
    rig_stop(&r);
}

static void texts_become_tokens_and_texts_again(void **state)
{
    struct rig r;
    struct answer a;
    char body[512], *tokens, *end;

    (void)state;
    start(&r, NULL, NULL);
    ask_api(&r, "/tokenize", "{\"prompt\":\"Hello <|im_end|> \xc3\xa4\"}", &a);
    assert_int_equal(a.status, 200);
    tokens = strstr(buf_cstr(&a.body), "[");
    end = strstr(tokens, "]");
    assert_non_null(strstr(end, ",\"count\":"));
    assert_non_null(strstr(end, ",\"max_model_len\":512}"));
    snprintf(body, sizeof body, "{\"skip_special_tokens\":false,\"tokens\":%.*s}",
             (int)(end + 1 - tokens), tokens);
    answer_release(&a);
    ask_api(&r, "/v1/detokenize", body, &a);
    assert_string_equal(buf_cstr(&a.body), "{\"text\":\"Hello <|im_end|> \xc3\xa4\"}");
    answer_release(&a);
    ask_api(&r, "/v1/tokenize", "{\"prompt\":[\"\",\"<|im_end|>\"]}", &a);
    assert_string_equal(buf_cstr(&a.body),
                        "{\"tokens\":[[],[4085]],\"count\":[0,1],\"max_model_len\":512}");
    answer_release(&a);
    ask_api(&r, "/detokenize", "{\"tokens\":[[],[4085]]}", &a);
    assert_string_equal(buf_cstr(&a.body), "{\"text\":[\"\",\"\"]}");
    answer_release(&a);
    expect_refusal(&r, "/tokenize", "{}", 400, "prompt", NULL);
    expect_refusal(&r, "/tokenize", "{\"prompt\":[5]}", 400, "prompt", NULL);
    expect_refusal(&r, "/detokenize", "{\"tokens\":[99999999]}", 400, "tokens", NULL);
    expect_refusal(&r, "/detokenize", "{\"tokens\":\"x\"}", 400, "tokens", NULL);
    rig_stop(&r);
}

static void metrics_count(void **state)
{
    static const char *const pieces[] = {"x", "y", NULL};
    struct rig r;
    struct answer a;
    struct response m;

    (void)state;
    start(&r, NULL, pieces);
    chat(&r, OFF, false, &a);
    answer_release(&a);
    assert_int_equal(ask(&r, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", &m), 200);
    assert_non_null(strstr(buf_cstr(&m.body),
                           "spillway_generation_tokens_total{model_name=\"org/puppet\"} 3\n"));
    assert_non_null(
        strstr(buf_cstr(&m.body),
               "spillway_time_to_first_token_seconds_count{model_name=\"org/puppet\"} 1\n"));
    assert_non_null(strstr(buf_cstr(&m.body), "finished_reason=\"stop\"} 1\n"));
    assert_non_null(strstr(buf_cstr(&m.body), "spillway_num_requests_running{"));
    response_release(&m);
    rig_stop(&r);
}

static bool made_offload(void *ctx, struct offload_stats *out)
{
    *out = (struct offload_stats){.n_layers = 40,
                                  .n_experts = 256,
                                  .n_slots = 5120,
                                  .n_pageable = 3,
                                  .n_inserted = 4,
                                  .block_bytes = 1000,
                                  .both_ns = 2e6,
                                  .either_ns = 8e6,
                                  .n_hits = 60,
                                  .n_fetched = 15,
                                  .n_cpu = 5,
                                  .n_next = 10,
                                  .n_next_used = 8};
    return *(const bool *)ctx;
}

static void overflowing_experts_are_counted(void **state)
{
    static const char *const pieces[] = {"x", NULL};
    static const char label[] = "{model_name=\"org/puppet\"";
    bool overflows = false;
    struct response m;
    struct rig r;
    char line[256];

    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        rig_start(&r, NULL);
        r.engine.pieces = pieces;
        r.model.tokenizer = tokenizer;
        r.model.chat_template = template;
        r.model.read_offload = made_offload;
        r.model.offload_ctx = &overflows;
        rig_set_ready(&r);
        while (ask_status(&r, "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n") != 200) {
        }
        assert_int_equal(ask(&r, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", &m), 200);
        snprintf(line, sizeof line, "spillway_offload_misses_total%s,engine=\"link\"} 15\n", label);
        assert_true((strstr(buf_cstr(&m.body), line) != NULL) == overflows);
        snprintf(line, sizeof line, "spillway_offload_hit_ratio%s} 0.75\n", label);
        assert_true((strstr(buf_cstr(&m.body), line) != NULL) == overflows);
        snprintf(line, sizeof line, "spillway_offload_overlap_ratio%s} 0.25\n", label);
        assert_true((strstr(buf_cstr(&m.body), line) != NULL) == overflows);
        snprintf(line, sizeof line, "spillway_offload_pageable_layers%s} 3\n", label);
        assert_true((strstr(buf_cstr(&m.body), line) != NULL) == overflows);
        snprintf(line, sizeof line, "spillway_offload_link_bytes_total%s} 25000\n", label);
        assert_true((strstr(buf_cstr(&m.body), line) != NULL) == overflows);
        response_release(&m);
        assert_int_equal(ask(&r, "GET /server_info HTTP/1.1\r\nHost: localhost\r\n\r\n", &m), 200);
        struct json_object *info;
        assert_int_equal(json_parse(&info, buf_cstr(&m.body), m.body.len, NULL), OK);
        assert_true((json_get(info, "offload") != NULL) == overflows);
        if (overflows) {
            struct json_object *o = json_get(info, "offload");
            assert_int_equal(json_object_get_int(json_get(o, "experts")), 10240);
            assert_int_equal(json_object_get_int(json_get(o, "pageable_layers")), 3);
            assert_int_equal(json_object_get_int(json_get(o, "inserted")), 4);
            assert_true(json_object_get_double(json_get(o, "hit_rate")) == 0.75);
            assert_true(json_object_get_double(json_get(o, "overlap")) == 0.25);
        }
        json_object_put(info);
        response_release(&m);
        rig_stop(&r);
        overflows = true;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinking_follows_the_prompt),
        cmocka_unit_test(a_tag_in_the_users_text_opens_nothing),
        cmocka_unit_test(held_thoughts_come_in_one_piece),
        cmocka_unit_test(tool_calls_are_parsed),
        cmocka_unit_test(calls_stay_text_where_they_are_not_wanted),
        cmocka_unit_test(a_call_ends_an_open_thought),
        cmocka_unit_test(own_messages_are_accepted_back),
        cmocka_unit_test(usage_comes_when_asked_for),
        cmocka_unit_test(choices_differ_by_their_seeds),
        cmocka_unit_test(every_token_has_its_log_probability),
        cmocka_unit_test(what_ended_it_is_told),
        cmocka_unit_test(degenerate_bodies_are_refused),
        cmocka_unit_test(prompts_beyond_the_context_are_refused),
        cmocka_unit_test(a_full_queue_is_429),
        cmocka_unit_test(failures_end_one_request_only),
        cmocka_unit_test(model_names_are_free_unless_strict),
        cmocka_unit_test(prompts_come_in_four_forms),
        cmocka_unit_test(echo_repeats_the_prompt),
        cmocka_unit_test(the_last_message_can_be_continued),
        cmocka_unit_test(texts_become_tokens_and_texts_again),
        cmocka_unit_test(metrics_count),
        cmocka_unit_test(overflowing_experts_are_counted),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
