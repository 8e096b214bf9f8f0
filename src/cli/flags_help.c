/* flags_help.c - what --help prints and the manual page says, both from the flag tables.
 *
 * Trade-off: flags that are accepted without effect are only named in --help (there are over a
 *            hundred); the manual page gives each one's reason. */
#include <stdio.h>
#include <string.h>

#include "cli/flags_internal.h"

enum { HELP_WIDTH = 80, HELP_COLUMN = 30 };

void flags_usage_line(struct buf *out, const struct flags_ctx *ctx)
{
    const char *arguments = ctx->cmd->arguments   ? ctx->cmd->arguments
                            : ctx->positional_max ? "[ARG...]"
                                                  : "";
    buf_appendf(out, "usage: spillway %s [FLAGS]%s%s   (--help lists the flags)\n", ctx->cmd->name,
                arguments[0] ? " " : "", arguments);
}

/* Append text, broken at blanks, continuing at column `indent`; *column is where the line stands. */
static void wrap(struct buf *out, size_t *column, size_t indent, const char *text)
{
    while (*text) {
        size_t len = strcspn(text, " ");
        if (*column + 1 + len > HELP_WIDTH && *column > indent) {
            buf_appendf(out, "\n%*s", (int)indent, "");
            *column = indent;
        } else if (*column > indent) {
            buf_append_char(out, ' ');
            (*column)++;
        }
        buf_append(out, text, len);
        *column += len;
        text += len + strspn(text + len, " ");
    }
}

/* The value that the flag has when it is not given, or "". */
static void default_text(char *out, size_t n, const struct flag *flag, const void *options)
{
    const char *at = (const char *)options + flag->offset;
    union {
        const char *text;
        size_t size;
        int64_t integer;
        double number;
    } value;

    out[0] = '\0';
    if (flag->no_effect || flag->kind == FLAG_BOOL || flag->kind == FLAG_LIST) {
        return;
    }
    memcpy(&value, at, sizeof value); /* all four have eight bytes */
    switch (flag->kind) {
    case FLAG_SIZE:
        if (value.size) {
            snprintf(out, n, "%zu", value.size);
        }
        break;
    case FLAG_INT:
        if (value.integer) {
            snprintf(out, n, "%lld", (long long)value.integer);
        }
        break;
    case FLAG_DOUBLE:
        if (value.number != 0) {
            snprintf(out, n, "%g", value.number);
        }
        break;
    default:
        if (value.text && value.text[0]) {
            snprintf(out, n, "%s", value.text);
        }
        break;
    }
}
_Static_assert(sizeof(size_t) == 8 && sizeof(char *) == 8 && sizeof(double) == 8,
               "option values are read as eight bytes");

static const char *metavar_of(const struct flag *flag)
{
    if (flag->kind == FLAG_BOOL) {
        return NULL;
    }
    return flag->metavar ? flag->metavar : flag->choices ? flag->choices : "VALUE";
}

struct names {
    struct buf *out;
    const char *prefix; /* "--", or "\\-\\-" in a manual page */
    bool roff;
    size_t n;
};

/* roff takes '-' for a hyphen and a leading '.' or '\'' for a request. */
static void roff_text(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '-') {
            buf_append_str(out, "\\-");
        } else if (text[i] == '\\') {
            buf_append_str(out, "\\e");
        } else if ((text[i] == '.' || text[i] == '\'') && (i == 0 || text[i - 1] == '\n')) {
            buf_append_str(out, "\\&");
            buf_append_char(out, text[i]);
        } else {
            buf_append_char(out, text[i]);
        }
    }
}

static bool append_name(void *ctx, const char *name, size_t len)
{
    struct names *n = ctx;
    const char *dashes = len == 1 ? "-" : "--";
    buf_append_str(n->out, n->n++ ? ", " : "");
    if (n->roff) {
        buf_append_str(n->out, "\\fB");
        roff_text(n->out, dashes, strlen(dashes));
        roff_text(n->out, name, len);
        buf_append_str(n->out, "\\fR");
    } else {
        buf_append_str(n->out, dashes);
        buf_append(n->out, name, len);
    }
    return true;
}

static bool is_hidden(const struct flag *flag)
{
    return !flag->help && !flag->no_effect;
}

static void help_flag(struct buf *out, const struct flag *flag, const void *options)
{
    size_t start = out->len;
    char value[128];
    buf_append_str(out, "  ");
    flag_each_name(flag, append_name, &(struct names){.out = out});
    if (metavar_of(flag)) {
        buf_appendf(out, " %s%s", metavar_of(flag), flag->kind == FLAG_LIST ? "..." : "");
    }
    size_t column = out->len - start;
    if (column + 2 > HELP_COLUMN) {
        buf_append_char(out, '\n');
        column = 0;
    }
    buf_appendf(out, "%*s", (int)(HELP_COLUMN - column), "");
    column = HELP_COLUMN;
    wrap(out, &column, HELP_COLUMN, flag->help ? flag->help : "");
    default_text(value, sizeof value, flag, options);
    if (value[0]) {
        char text[160];
        snprintf(text, sizeof text, "(default: %s)", value);
        wrap(out, &column, HELP_COLUMN, text);
    }
    buf_append_char(out, '\n');
}

/* The names of all flags without effect, as one paragraph. */
static void help_without_effect(struct buf *out, const struct flags_ctx *ctx)
{
    size_t column = 2, n = 0;
    for (size_t g = 0; g < ctx->n_groups; g++) {
        for (size_t i = 0; i < ctx->groups[g].n_flags; i++) {
            const struct flag *flag = &ctx->groups[g].flags[i];
            if (!flag->no_effect) {
                continue;
            }
            if (n++ == 0) {
                buf_append_str(out,
                               "\nAccepted, without effect here (the manual page says why)\n  ");
            }
            char name[FLAG_NAME_BYTES_MAX + 3];
            snprintf(name, sizeof name, "--%.64s", flag->name);
            wrap(out, &column, 2, name);
        }
    }
    if (n) {
        buf_append_char(out, '\n');
    }
}

static bool group_shows(const struct flag_group *group)
{
    for (size_t i = 0; i < group->n_flags; i++) {
        if (!is_hidden(&group->flags[i]) && !group->flags[i].no_effect) {
            return true;
        }
    }
    return false;
}

/* The command's example lines, indented. */
static void append_lines(struct buf *out, const char *indent, const char *text)
{
    while (text && *text) {
        size_t len = strcspn(text, "\n");
        buf_append_str(out, indent);
        buf_append(out, text, len);
        buf_append_char(out, '\n');
        text += len + (text[len] == '\n');
    }
}

void flags_print_help(const struct flags_ctx *ctx)
{
    struct buf out;
    buf_init(&out);
    flags_usage_line(&out, ctx);
    buf_appendf(&out, "\n%s\n", ctx->cmd->summary);
    for (size_t g = 0; g < ctx->n_groups; g++) {
        const struct flag_group *group = &ctx->groups[g];
        if (!group_shows(group)) {
            continue;
        }
        buf_appendf(&out, "\n%s\n", group->title);
        for (size_t i = 0; i < group->n_flags; i++) {
            if (!is_hidden(&group->flags[i]) && !group->flags[i].no_effect) {
                help_flag(&out, &group->flags[i], group->options);
            }
        }
    }
    help_without_effect(&out, ctx);
    buf_append_str(&out, "\nEvery flag is also an environment variable: --some-flag is "
                         "SPILLWAY_SOME_FLAG.\n");
    buf_append_str(&out, "\nExamples\n");
    append_lines(&out, "  ", ctx->cmd->examples);
    fputs(buf_cstr(&out), stdout);
    buf_release(&out);
}

/* A help line as a sentence. */
static void roff_sentence(struct buf *out, const char *text)
{
    char first = text[0];
    if (first >= 'a' && first <= 'z') {
        buf_append_char(out, (char)(first - 'a' + 'A'));
        text++;
    }
    roff_text(out, text, strlen(text));
}

static void man_flag(struct buf *out, const struct flag *flag, const void *options)
{
    char value[128];
    buf_append_str(out, ".TP\n");
    flag_each_name(flag, append_name, &(struct names){.out = out, .roff = true});
    if (metavar_of(flag)) {
        buf_append_str(out, " \\fI");
        roff_text(out, metavar_of(flag), strlen(metavar_of(flag)));
        buf_appendf(out, "%s\\fR", flag->kind == FLAG_LIST ? "..." : "");
    }
    buf_append_char(out, '\n');
    if (flag->no_effect) {
        buf_append_str(out, "Accepted, no effect: ");
        roff_text(out, flag->no_effect, strlen(flag->no_effect));
    } else {
        roff_sentence(out, flag->help);
    }
    default_text(value, sizeof value, flag, options);
    if (value[0]) {
        buf_append_str(out, " (default: ");
        roff_text(out, value, strlen(value));
        buf_append_char(out, ')');
    }
    buf_append_str(out, ".\n");
}

void flags_print_man(const struct flags_ctx *ctx)
{
    struct buf out;
    buf_init(&out);
    buf_appendf(&out, ".SS \"spillway %s\"\n", ctx->cmd->name);
    roff_sentence(&out, ctx->cmd->summary);
    buf_append_str(&out, ".\n");
    for (size_t g = 0; g < ctx->n_own; g++) { /* --help and --config are described once, by hand */
        const struct flag_group *group = &ctx->groups[g];
        buf_appendf(&out, ".PP\n\\fI%s\\fR\n", group->title);
        for (size_t i = 0; i < group->n_flags; i++) {
            if (!is_hidden(&group->flags[i])) {
                man_flag(&out, &group->flags[i], group->options);
            }
        }
    }
    buf_append_str(&out, ".PP\nExamples:\n.PP\n.nf\n");
    struct buf examples;
    buf_init(&examples);
    append_lines(&examples, "    ", ctx->cmd->examples);
    roff_text(&out, buf_cstr(&examples), examples.len);
    buf_release(&examples);
    buf_append_str(&out, ".fi\n");
    fputs(buf_cstr(&out), stdout);
    buf_release(&out);
}
