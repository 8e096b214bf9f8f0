/* jinja.h - a Jinja2 engine for chat templates.
 *
 * Place:  text; chat_template.c is its user. lex -> parse (an AST in an arena) -> a tree walker over
 *         the AST, with all values of one rendering in a second arena that is dropped at the end.
 * Source: the behaviour of Jinja2 3.1 in an ImmutableSandboxedEnvironment with trim_blocks,
 *         lstrip_blocks, the loop controls extension and transformers' tojson, raise_exception,
 *         strftime_now and {% generation %}; printing, arithmetic and string methods as Python 3.11.
 *         tests/jinja_oracle_test.sh compares.
 * Idea:   strings remember for each byte whether it came from the template (trusted) or from the
 *         variables (untrusted), through every filter and method; the result is a list of runs.
 *         What tojson and repr() add around request data counts as untrusted too.
 * Differs from Jinja2, on purpose: include, import, extends, block, autoescape and recursive loops
 *         are refused by name; integers that leave 64 bits are an error; sizes, steps and nesting
 *         have limits. */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H

#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer.h"

enum {
    JINJA_SOURCE_BYTES_MAX = 1 << 20,
    JINJA_NESTING_MAX = 400, /* brackets, tags and operators inside each other in the source */
    JINJA_RUN_DEPTH_MAX =
        1200 /* the same while rendering; macro calls and nested values included */
};

struct jinja_template;

/* Compile. ERR_FORMAT with "line N: ..." for anything that cannot be used. */
enum status jinja_template_new(struct jinja_template **out, struct str source, struct error *err);
void jinja_template_free(struct jinja_template *t); /* accepts NULL */

/* Whether the template reads a variable of this name. */
bool jinja_template_reads(const struct jinja_template *t, struct str variable);

struct jinja_variables {
    struct json_object *object; /* each member is a variable; NULL: none; JSON null is none */
    bool is_trusted;
};

struct jinja_options {
    const struct jinja_variables *variables; /* later ones win */
    size_t n_variables;
    const char
        *watched;     /* a variable holding a list: errors say at which of its items they arose */
    size_t steps_max; /* evaluated nodes, and units of work of about 64 bytes */
    size_t output_bytes_max; /* of the result, and of each string on the way */
    size_t memory_bytes_max; /* of all values of the rendering */
    int64_t now_s;           /* for strftime_now, shown in local time */
    bool roles_trusted;      /* a watched item's "role" that is a known role word is trusted */
};

struct jinja_result { /* release with jinja_result_release */
    struct buf text;
    struct text_run *runs; /* slices of text.data, adjacent ones of one kind joined */
    size_t n_runs;
    size_t watched_idx; /* on failure: item of the watched list, or SIZE_MAX */
};
void jinja_result_release(struct jinja_result *r);

/* Render. ERR_BAD_REQUEST: the template raised, or did what Python would raise for ("line N: ...",
 * except for raise_exception, whose text stands alone). ERR_LIMIT: a limit of o was passed.
 * Read-only on t. */
enum status jinja_render(struct jinja_result *out, const struct jinja_template *t,
                         const struct jinja_options *o, struct error *err);

#endif
