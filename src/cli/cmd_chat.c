/* cmd_chat.c - `spillway chat`: a conversation in the terminal.
 *
 * Place: cli; on generator (the model in this process) and line_editor. Without a terminal on
 *        standard input each line is one message, so that a conversation can be scripted.
 * Looks: thinking is dim, the answer plain, numbers dim behind it. With NO_COLOR, or when the output is no
 *        terminal, there are no escape sequences; thinking is then set between <think> tags or, in a
 *        pipe, left out unless --show-thinking. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generator.h"
#include "cli/line_editor.h"
#include "cli/model_setup.h"
#include "cli/sample_flags.h"

struct chat_flags {
    const char *system, *history;
    bool no_history, verbose;
};

static const struct flag chat_flag_table[] = {
    {.name = "system",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct chat_flags, system),
     .metavar = "TEXT",
     .help = "system message"},
    {.name = "history",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct chat_flags, history),
     .metavar = "FILE",
     .help = "where inputs are kept; by default spillway/history in $XDG_STATE_HOME, or in "
             "~/.local/state"},
    {.name = "no-history",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct chat_flags, no_history),
     .help = "keep inputs in memory only"},
    {.name = "verbose",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct chat_flags, verbose),
     .help = "print the effective settings and the plan while loading"},
};

struct chat {
    struct model_flags model;
    struct sample_flags sample;
    struct chat_flags flags;
    struct flag_result given;
    struct generator generator;
    struct conversation conversation;
    struct line_editor *editor; /* NULL: lines from standard input */
    bool out_is_tty, use_color, thinking;
    /* of the answer being printed */
    bool in_thinking, any_content;
    char last;
};

/* ---- printing ------------------------------------------------------------------------------- */

static const char *dim(const struct chat *c)
{
    return c->use_color ? "\x1b[2m" : "";
}

static const char *normal(const struct chat *c)
{
    return c->use_color ? "\x1b[0m" : "";
}

static void say(const struct chat *c, const char *text)
{
    FILE *to = c->out_is_tty ? stdout : stderr;
    fprintf(to, "%s%s%s\n", dim(c), text, normal(c));
    fflush(to);
}

static void enter_thinking(struct chat *c)
{
    c->in_thinking = true;
    fputs(c->use_color ? dim(c) : "<think>\n", stdout);
}

static void leave_thinking(struct chat *c)
{
    c->in_thinking = false;
    fputs(c->last == '\n' ? "" : "\n", stdout);
    fputs(c->use_color ? normal(c) : "</think>\n", stdout);
    fputs("\n", stdout);
}

static void print_text(void *ctx, struct str text, bool is_thinking)
{
    struct chat *c = ctx;
    if (is_thinking && !c->out_is_tty && !c->sample.show_thinking) {
        return;
    }
    if (is_thinking && !c->in_thinking) {
        enter_thinking(c);
    } else if (!is_thinking && c->in_thinking) {
        leave_thinking(c);
    }
    struct buf safe;
    buf_init(&safe);
    if (c->out_is_tty) {
        terminal_text(&safe, text);
    } else {
        buf_append(&safe, text.ptr, text.len);
    }
    fwrite(buf_cstr(&safe), 1, safe.len, stdout);
    fflush(stdout);
    if (safe.len > 0) {
        c->last = safe.data[safe.len - 1];
    }
    c->any_content = c->any_content || !is_thinking;
    buf_release(&safe);
}

static bool is_interrupted(void *ctx)
{
    struct chat *c = ctx;
    return c->editor && line_editor_interrupted(c->editor);
}

/* ---- one exchange --------------------------------------------------------------------------- */

static enum status ask(struct chat *c, struct generator_result *result, struct error *err)
{
    const struct generator_sink sink = {
        .text = print_text, .is_interrupted = is_interrupted, .ctx = c};
    struct json_object *kwargs = json_object_new_object();
    if (!kwargs) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the request");
    }
    if (!c->thinking) {
        json_object_object_add(kwargs, "enable_thinking", json_object_new_boolean(0));
    }
    const struct generator_request r = {
        .messages = c->conversation.messages,
        .kwargs = kwargs,
        .sampling = sample_flags_resolve(&c->sample, &c->given, &c->generator.setup.generation),
        .max_tokens = c->sample.max_tokens,
    };
    c->in_thinking = c->any_content = false;
    c->last = '\n';
    enum status rc = generator_run(&c->generator, &r, &sink, result, err);
    if (c->in_thinking) {
        leave_thinking(c);
    } else if (c->last != '\n') {
        putchar('\n');
    }
    fflush(stdout);
    json_object_put(kwargs);
    return rc;
}

/* Returns false when chatting is pointless from here on. */
static bool exchange(struct chat *c, struct str text)
{
    struct generator_result result = {0};
    struct error err = {0};
    char stats[256];
    if (!conversation_add_user(&c->conversation, text)) {
        say(c, "out of memory; /clear gives some back");
        return true;
    }
    enum status rc = ask(c, &result, &err);
    struct str thinking = {result.thinking.data, result.thinking.len};
    struct str content = {result.content.data, result.content.len};
    if (rc == OK) {
        generator_stats_text(stats, sizeof stats, &result);
        say(c, stats);
    }
    if (rc != OK) {
        fprintf(stderr, "%s%s\n", err.text,
                rc == ERR_BAD_REQUEST && conversation_turns(&c->conversation) > 1
                    ? " (/clear starts anew)"
                    : "");
    }
    /* Nothing answered: the question goes too, so that questions and answers stay in turn. */
    if (rc != OK || (content.len == 0 && thinking.len == 0) ||
        !conversation_add_answer(&c->conversation, thinking, content)) {
        conversation_drop_last(&c->conversation);
    }
    generator_result_release(&result);
    return rc != ERR_DEVICE && rc != ERR_INTERNAL;
}

/* ---- commands ------------------------------------------------------------------------------- */

static void command_help(struct chat *c, const char *argument)
{
    (void)argument;
    say(c, "/system TEXT   set the system message (none: remove it) and start anew\n"
           "/clear         forget the conversation\n"
           "/think         let the model think first\n"
           "/nothink       ask for answers without thinking\n"
           "/save FILE     write the conversation as JSON\n"
           "/exit          leave, as Ctrl-D does\n"
           "Enter sends; Alt-Enter or Ctrl-J makes a new line; Ctrl-C stops an answer.");
}

static void command_clear(struct chat *c, const char *argument)
{
    (void)argument;
    say(c, conversation_clear(&c->conversation) ? "forgotten" : "out of memory");
}

static void command_system(struct chat *c, const char *argument)
{
    if (!conversation_set_system(&c->conversation, str_of(argument))) {
        say(c, "out of memory");
        return;
    }
    say(c, argument[0] ? "system message set, conversation forgotten"
                       : "system message removed, conversation forgotten");
}

static void set_thinking(struct chat *c, bool on)
{
    const struct chat_template *t = c->generator.setup.chat_template;
    c->thinking = on;
    if (t && !chat_template_traits(t).has_enable_thinking) {
        say(c, "this model's template has no switch for thinking; nothing changes");
        return;
    }
    say(c, on ? "thinking is on" : "thinking is off");
}

static void command_think(struct chat *c, const char *argument)
{
    (void)argument;
    set_thinking(c, true);
}

static void command_nothink(struct chat *c, const char *argument)
{
    (void)argument;
    set_thinking(c, false);
}

static void command_save(struct chat *c, const char *argument)
{
    struct error err = {0};
    if (!argument[0]) {
        say(c, "/save needs a file name");
    } else if (conversation_save(&c->conversation, argument, &err) != OK) {
        say(c, err.text);
    } else {
        say(c, "saved");
    }
}

static const struct {
    const char *name;
    void (*run)(struct chat *c, const char *argument);
} chat_commands[] = {
    {"/help", command_help},   {"/clear", command_clear},     {"/system", command_system},
    {"/think", command_think}, {"/nothink", command_nothink}, {"/save", command_save},
};

/* A line that begins with '/' and a letter. Returns false to leave. */
static bool run_command(struct chat *c, char *line)
{
    size_t len = strcspn(line, " \n");
    char *argument = line + len + strspn(line + len, " \n");
    line[len] = '\0';
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0 || strcmp(line, "/bye") == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof chat_commands / sizeof chat_commands[0]; i++) {
        if (strcmp(line, chat_commands[i].name) == 0) {
            chat_commands[i].run(c, argument);
            return true;
        }
    }
    say(c, "no such command; /help lists them");
    return true;
}

static bool is_command(const char *line)
{
    return line[0] == '/' && line[1] >= 'a' && line[1] <= 'z';
}

/* ---- reading -------------------------------------------------------------------------------- */

/* ~/.local/state/spillway/history, its folders made; NULL when there is no place. */
static char *default_history(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];
    int len;
    if (state && state[0] == '/') {
        len = snprintf(path, sizeof path, "%s/spillway/history", state);
    } else if (home && home[0] == '/') {
        len = snprintf(path, sizeof path, "%s/.local/state/spillway/history", home);
    } else {
        return NULL;
    }
    if (len < 0 || (size_t)len >= sizeof path) {
        return NULL;
    }
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(path, 0700); /* exists already, as a rule; open() finds out */
        *p = '/';
    }
    return strdup(path);
}

/* False at the end of the input. */
static bool read_piped_line(struct buf *out)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    buf_clear(out);
    if (n > 0) {
        buf_append(out, line, (size_t)n - (line[n - 1] == '\n'));
    }
    free(line);
    return n > 0;
}

static bool read_message(struct chat *c, struct buf *out)
{
    for (;;) {
        if (!c->editor) {
            return read_piped_line(out);
        }
        switch (line_editor_read(c->editor, out)) {
        case LINE_ACCEPTED:
            return true;
        case LINE_ENDED:
            return false;
        default:
            say(c, "Ctrl-D leaves");
            break;
        }
    }
}

static void talk(struct chat *c)
{
    struct buf line;
    buf_init(&line);
    bool go_on = true;
    while (go_on && read_message(c, &line)) {
        struct str text = {buf_cstr(&line), line.len};
        if (!buf_ok(&line) || text.len == 0 || strspn(text.ptr, " \t\n") == text.len) {
            continue;
        }
        if (utf8_valid_prefix(text.ptr, text.len) != text.len || memchr(text.ptr, '\0', text.len)) {
            say(c, "this line is no text in UTF-8; it was left out");
        } else if (is_command(text.ptr)) {
            go_on = run_command(c, line.data);
        } else {
            go_on = exchange(c, text);
        }
    }
    buf_release(&line);
}

/* ---- all together --------------------------------------------------------------------------- */

static void greet(const struct chat *c)
{
    char text[PATH_MAX + 64];
    snprintf(text, sizeof text, "%s; /help lists the commands, Ctrl-D leaves",
             checkpoint_dir(c->generator.setup.checkpoint));
    say(c, text);
}

static enum status open_editor(struct chat *c, const char *history, struct error *err)
{
    const struct line_editor_options o = {
        .in_fd = STDIN_FILENO,
        .out_fd = STDOUT_FILENO,
        .history_path = history,
        .prompt = "> ",
        .more = ". ",
        .style = c->use_color ? "\x1b[1;32m" : "",
        .normal = normal(c),
    };
    return line_editor_open(&c->editor, &o, err);
}

static enum status chat(struct chat *c, struct log *log, struct error *err)
{
    char demo[PATH_MAX];
    const char *no_color = getenv("NO_COLOR");
    bool in_is_tty = isatty(STDIN_FILENO) == 1;
    c->out_is_tty = isatty(STDOUT_FILENO) == 1;
    c->use_color = c->out_is_tty && !(no_color && no_color[0]);
    c->thinking = !c->sample.no_thinking;
    if (!c->model.model_path) {
        if (!demo_model_find(demo, sizeof demo)) {
            return error_set(
                err, ERR_NOT_FOUND,
                "no model: models/rill was not found beside the program; give --model");
        }
        c->model.model_path = demo;
    }
    log->level = c->flags.verbose ? LOG_INFO : LOG_WARNING;
    const struct generator_options options = {.want_template = true, .verbose = c->flags.verbose};
    enum status rc = generator_open(&c->generator, &c->model, &options, log, err);
    if (rc != OK) {
        return rc;
    }
    char *history = NULL;
    if (in_is_tty && c->out_is_tty) {
        history = c->flags.no_history ? NULL
                  : c->flags.history  ? strdup(c->flags.history)
                                      : default_history();
        rc = open_editor(c, history, err);
    }
    if (rc == OK && !conversation_init(&c->conversation)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the conversation");
    }
    if (rc == OK && c->flags.system &&
        !conversation_set_system(&c->conversation, str_of(c->flags.system))) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the conversation");
    }
    if (rc == OK) {
        if (c->editor) {
            greet(c);
        }
        talk(c);
    }
    conversation_release(&c->conversation);
    line_editor_close(c->editor);
    free(history);
    generator_close(&c->generator);
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct chat c = {0};
    struct error err = {0};
    model_flags_defaults(&c.model);
    const struct flag_group groups[] = {
        {"Chat", chat_flag_table, sizeof chat_flag_table / sizeof chat_flag_table[0], &c.flags},
        {"Sampling", sample_flag_table, sample_flag_count, &c.sample},
        {"Model", model_flag_table, model_flag_count, &c.model},
    };
    enum status rc = flags_parse(&c.given, &command_chat, groups, sizeof groups / sizeof groups[0],
                                 1, argc, argv, log, &err);
    if (rc == OK && c.given.n_positional) {
        c.model.model_path = c.given.positional[0];
    }
    if (rc == OK && !c.given.help) {
        rc = chat(&c, log, &err);
    }
    flags_release(&c.given);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_chat = {
    .name = "chat",
    .summary = "talk with a model in the terminal; without --model, with the demo model Rill",
    .arguments = "[MODEL]",
    .examples = "spillway chat\n"
                "spillway chat --model org/name --system 'Answer in one sentence.'\n"
                "spillway chat --no-thinking --temperature 0\n"
                "printf 'Hello\\nWhat is two and two?\\n' | spillway chat\n",
    .run = run,
};
