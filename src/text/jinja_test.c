/* jinja_test.c - what the comparison with Jinja2 cannot show: marks, limits, errors, linear cost.
 *
 * Whether templates render as Python renders them is the business of tests/jinja_oracle_test.sh; here
 * are a few of its cases, so that a machine without Python notices a broken engine. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/jinja.h"

enum { STEPS = 2000000, OUTPUT = 1 << 20, MEMORY = 64 << 20 };

static struct jinja_options default_options(void)
{
    return (struct jinja_options){.watched = "messages",
                                  .steps_max = STEPS,
                                  .output_bytes_max = OUTPUT,
                                  .memory_bytes_max = MEMORY};
}

/* Compile and render with o; the variables are untrusted. */
static enum status render(struct jinja_result *out, const char *source, const char *context,
                          struct jinja_options o, struct error *err)
{
    struct json_object *object = NULL;
    struct jinja_template *t = NULL;
    enum status rc;

    *out = (struct jinja_result){.watched_idx = SIZE_MAX};
    assert_int_equal(json_parse(&object, context, strlen(context), err), OK);
    rc = jinja_template_new(&t, str_of(source), err);
    if (rc == OK) {
        const struct jinja_variables variables = {.object = object};
        o.variables = &variables;
        o.n_variables = 1;
        rc = jinja_render(out, t, &o, err);
    }
    jinja_template_free(t);
    json_object_put(object);
    return rc;
}

static void expect(const char *source, const char *context, const char *text)
{
    struct jinja_result r;
    struct error err = {0};
    enum status rc = render(&r, source, context, default_options(), &err);

    if (rc != OK) {
        print_error("%s\n", err.text);
    }
    assert_int_equal(rc, OK);
    assert_string_equal(buf_cstr(&r.text), text);
    jinja_result_release(&r);
}

static void expect_error(const char *source, const char *context, enum status code,
                         const char *text)
{
    struct jinja_result r;
    struct error err = {0};

    assert_int_equal(render(&r, source, context, default_options(), &err), code);
    if (!strstr(err.text, text)) {
        print_error("'%s' is not in '%s'\n", text, err.text);
    }
    assert_non_null(strstr(err.text, text));
    jinja_result_release(&r);
}

/* Runs as text: T[...] is trusted, u[...] is not. */
static void expect_runs(const char *source, const char *context, const char *runs)
{
    struct jinja_result r;
    struct error err = {0};
    struct buf shown;

    assert_int_equal(render(&r, source, context, default_options(), &err), OK);
    buf_init(&shown);
    for (size_t i = 0; i < r.n_runs; i++) {
        buf_append_str(&shown, r.runs[i].is_trusted ? "T[" : "u[");
        buf_append(&shown, r.runs[i].text.ptr, r.runs[i].text.len);
        buf_append_char(&shown, ']');
    }
    assert_string_equal(buf_cstr(&shown), runs);
    buf_release(&shown);
    jinja_result_release(&r);
}

/* ---- a few renderings ---- */

static void renders_as_python(void **state)
{
    (void)state;
    expect("{{ [1, 1.0, 1e16, none, true, \"it's\", {'a': 'b'}] }}", "{}",
           "[1, 1.0, 1e+16, None, True, \"it's\", {'a': 'b'}]");
    expect("{{ x | tojson }} {{ x | tojson(indent=1) }}", "{\"x\": {\"k\": [0.1, 1e2, \"é\"]}}",
           "{\"k\": [0.1, 100.0, \"é\"]} {\n \"k\": [\n  0.1,\n  100.0,\n  \"é\"\n ]\n}");
    expect("a\n  {% if true %}\n  b\n  {%- endif %}\nc\n", "{}", "a\n  bc");
    expect("{% for k, v in m.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}",
           "{\"m\": {\"b\": 1, \"a\": 2}}", "b=1, a=2");
    expect("{{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 1 / 3 }}", "{}",
           "-4 2 1024 0.3333333333333333");
    expect("{{ n }}", "{\"n\": 18446744073709551615}", "18446744073709551615");
    expect("{% set ns = namespace(t='') %}{% for c in 'abc' %}{% set ns.t = c ~ ns.t %}{% endfor %}"
           "{{ ns.t }}",
           "{}", "cba");
    expect("", "{}", "");
    expect("{{ s }}", "{\"s\": \"a\\u0000b\"}", "a");
}

/* ---- marks ---- */

static void marks_follow_the_text(void **state)
{
    const char *x = "{\"x\": \"<|im_end|>\", \"y\": \"b\", \"n\": 5, \"l\": [\"p\", \"q\"]}";

    (void)state;
    expect_runs("a{{ x }}b", x, "T[a]u[<|im_end|>]T[b]");
    expect_runs("{{ '<' + x + '>' }}", x, "T[<]u[<|im_end|>]T[>]");
    expect_runs("{{ '<' ~ x ~ y ~ n }}", x, "T[<]u[<|im_end|>b]T[5]");
    expect_runs("{{ ('a' + x + 'z') | upper }}", x, "T[A]u[<|IM_END|>]T[Z]");
    expect_runs("{{ ('a' + x + 'z')[1:-1] }}", x, "u[<|im_end|>]");
    expect_runs("{{ ('a' + x + 'z')[::-1] }}", x, "T[z]u[>|dne_mi|<]T[a]");
    expect_runs("{{ (' ' + x + ' ') | trim }}", x, "u[<|im_end|>]");
    expect_runs("{{ ('a,' + y).split(',') | join('-') }}", x, "T[a-]u[b]");
    expect_runs("{{ 'a.c'.replace('.', y) }}", x, "T[a]u[b]T[c]");
    expect_runs("{{ x.replace('im', 'IM') }}", x, "u[<|]T[IM]u[_end|>]");
    expect_runs("{{ l | join('+') }}", x, "u[p]T[+]u[q]");
    expect_runs("{{ '%s and %s' % (y, 'c') }}", x, "u[b]T[ and c]");
    expect_runs("{{ '{} {}'.format(y, 1) }}", x, "u[b]T[ 1]");
    expect_runs("{{ y.format(1) }}{{ '' }}", "{\"y\": \"<{}>\"}", "u[<1>]");
    expect_runs("{{ y % 60 }}", "{\"y\": \"%c|\"}", "u[<|]");
    expect_runs("{{ '%c' % 60 }}", x, "u[<]");
    expect_runs("{{ y * 2 }}{{ 'c' * 2 }}", x, "u[bb]T[cc]");
    expect_runs("{{ ('q' ~ y) | indent(2, first=true) }}", x, "u[  ]T[q]u[b]");
    expect_runs("{{ y | safe }}{{ y | e }}{{ '&' | e }}", x, "u[bb]T[&amp;]");
    expect_runs("{% set z %}a{{ y }}{% endset %}{{ z }}", x, "T[a]u[b]");
    expect_runs("{% macro m(v) %}[{{ v }}]{% endmacro %}{{ m(y) }}", x, "T[[]u[b]T[]]");
    expect_runs("{% filter upper %}a{{ y }}{% endfilter %}", x, "T[A]u[B]");
    expect_runs("{% for c in y ~ 'z' %}{{ c }}{% endfor %}", x, "u[b]T[z]");
    expect_runs("{{ ('a' ~ y).title() }}{{ (y ~ 'a').center(4) }}", x, "T[A]u[b b]T[a]u[ ]");
}

/* Brackets and quotes around the client's data are its own too: their number follows the data. */
static void marks_of_structures(void **state)
{
    const char *x = "{\"x\": {\"k\": [\"<|a|>\", 1]}, \"e\": []}";

    (void)state;
    expect_runs("{{ x | tojson }}", x, "u[{\"k\": [\"<|a|>\", 1]}]");
    expect_runs("{{ x }}", x, "u[{'k': ['<|a|>', 1]}]");
    expect_runs("{{ {'t': x.k[0]} | tojson }}", x, "u[{\"]T[t]u[\": \"<|a|>\"}]");
    expect_runs("{{ ['t'] }}", x, "u[[']T[t]u[']]");
    expect_runs("{{ x.k[1] }}{{ e }}{{ e | length }}", x, "T[1]u[[]]T[0]");
    expect_runs("{{ (x | tojson | from_json).k[0] }}", x, "u[<|a|>]");
    expect_runs("{{ ('[\"a\"]' | from_json)[0] }}", x, "T[a]");
    expect_runs("{{ x.keys() | list | first }}", x, "u[k]");
}

/* What is equal by its characters is equal, whatever the marks. */
static void marks_do_not_compare(void **state)
{
    const char *x = "{\"x\": \"user\", \"m\": {\"user\": 1}}";

    (void)state;
    expect("{{ x == 'user' }}{{ 'user' in m }}{{ m[x] }}{{ {'user': 2}[x] }}{{ x in 'a user' }}"
           "{{ ['user', x] | unique | list | length }}{{ 'us' + 'er' == x }}",
           x, "TrueTrue12True1True");
}

static void strings_that_share_memory(void **state)
{
    const char *x = "{\"x\": \"untrusted\"}";
    struct buf source;

    (void)state;
    buf_init(&source);
    buf_append_str(&source, "{% set a = '");
    for (int i = 0; i < 400; i++) {
        buf_append_char(&source, '.');
    }
    buf_append_str(&source,
                   "' + '|' %}{% set b = a + x %}{% set c = a + 'T' %}{% set d = b + 'E' %}"
                   "{% set f = b + 'F' %}{{ a[-1:] }}{{ b[-4:] }}{{ c[-2:] }}{{ d[-4:] }}"
                   "{{ f[-4:] }}");
    expect_runs(buf_cstr(&source), x, "T[|]u[sted]T[|T]u[ted]T[E]u[ted]T[F]");
    buf_release(&source);
}

/* ---- errors ---- */

static void errors_carry_the_line(void **state)
{
    (void)state;
    expect_error("a\nb\n{{ x.y }}\n", "{}", ERR_BAD_REQUEST, "line 3: 'x' is undefined");
    expect_error("a\n{% if %}", "{}", ERR_FORMAT, "line 2: ");
    expect_error("\n\n{% for x in y %}", "{}", ERR_FORMAT, "the template ends before 'endfor'");
    expect_error("{{ 'a' + 1 }}", "{}", ERR_BAD_REQUEST, "'str' and 'int'");
    expect_error("{{ x | nosuch }}", "{}", ERR_FORMAT, "no filter named 'nosuch'");
    expect_error("{% include 'x' %}", "{}", ERR_FORMAT, "'include' is not supported");
    expect_error("{% for x in y recursive %}{% endfor %}", "{}", ERR_FORMAT, "recursive");
    expect_error("{{ x | urlize }}", "{}", ERR_FORMAT, "'urlize' is not supported");
    expect_error("{% frob %}", "{}", ERR_FORMAT, "unknown tag 'frob'");
    expect_error("{{ raise_exception('no ' + x) }}", "{\"x\": \"way\"}", ERR_BAD_REQUEST, "no way");
    expect_error("{{ 9223372036854775807 + 1 }}", "{}", ERR_BAD_REQUEST, "64 bits");
    expect_error("{{ [].append(1) }}", "{}", ERR_BAD_REQUEST,
                 "'append' of 'list' object is unsafe");
    expect_error("\xff", "{}", ERR_FORMAT, "not UTF-8 at byte 0");
}

static void the_watched_item_is_named(void **state)
{
    const char *context = "{\"messages\": [{\"r\": 1}, {\"r\": 2}, {\"r\": 3}], \"l\": [1]}";
    const struct {
        const char *source;
        size_t idx;
    } cases[] = {
        {"{% for m in messages %}{% if m.r == 2 %}{{ raise_exception('x') }}{% endif %}{% endfor "
         "%}",
         1},
        {"{% for m in messages[1:] %}{% for i in l %}{{ m.r.x.y }}{% endfor %}{% endfor %}", 1},
        {"{% macro f(m) %}{{ 1 / (m.r - 3) }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% "
         "endfor %}",
         2},
        {"{% for m in messages %}{% endfor %}{{ x.y }}", SIZE_MAX},
        {"{{ messages[0].x.y }}", SIZE_MAX},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_result r;
        struct error err = {0};
        assert_int_equal(render(&r, cases[i].source, context, default_options(), &err),
                         ERR_BAD_REQUEST);
        assert_int_equal(r.watched_idx, cases[i].idx);
        jinja_result_release(&r);
    }
}

/* ---- limits ---- */

static void limits_end_a_rendering(void **state)
{
    const struct {
        const char *source, *text;
    } cases[] = {
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "steps"},
        {"{{ 'a' * 100000000 }}", "bytes of text"},
        {"{% set x = 'a' * 1000 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "bytes of text"},
        {"{{ [0] * 100000000 }}", "bytes of values"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels of nesting"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}"
         "{{ ns.x }}",
         "levels of nesting"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}"
         "{{ ns.x | tojson }}",
         "levels of nesting"},
        {"{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}{% for i in range(9999) %}"
         "{% set a.x = [a.x] %}{% set b.x = [b.x] %}{% endfor %}{{ a.x == b.x }}",
         "levels of nesting"},
        {"{% set ns = namespace(x=()) %}{% for i in range(9999) %}{% set ns.x = (ns.x,) %}{% "
         "endfor %}"
         "{{ {ns.x: 1} }}",
         "levels of nesting"},
        {"{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}"
         "{% set ns.x = ns.x | select %}{% endfor %}{{ ns.x | list }}",
         "levels of nesting"},
        {"{{ '%999999999d' % 1 }}", "larger than"},
        {"{{ '{:>999999999}'.format(1) }}", "larger than"},
        {"{% set x = 'ab' * 200000 %}{{ x.rfind('a' * 200000) }}{{ x.rfind('b' + 'a' * 200000) }}"
         "{{ ('a' * 400000).rfind('b' + 'a' * 200000) }}{{ ('a' * 400000).rfind('a' * 200000 + "
         "'b') }}",
         "steps"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja_result r;
        struct error err = {0};
        enum status rc = render(&r, cases[i].source, "{}", default_options(), &err);
        if (!strstr(err.text, cases[i].text)) {
            print_error("%s: %s\n", cases[i].source, err.text);
        }
        assert_true(rc == ERR_LIMIT || rc == ERR_BAD_REQUEST);
        assert_non_null(strstr(err.text, cases[i].text));
        jinja_result_release(&r);
    }
}

/* Touches most of the engine. */
static const char BUSY[] =
    "{% macro m(a, b=[1, 2], c={'k': a}) %}{{ a ~ b ~ c ~ varargs ~ kwargs }}{{ caller(1) }}"
    "{% endmacro %}{% set ns = namespace(t='', l=[]) %}"
    "{% for x, y in (messages | map(attribute='content') | list | batch(2)) if x %}"
    "{% set ns.t = ns.t ~ x | upper | replace('A', y) %}{% set ns.l = ns.l + [x, (y,)] %}"
    "{{ loop.last }}{{ loop.length }}{{ loop.nextitem }}{% endfor %}{{ ns }}"
    "{% call(n) m(messages[0], *[7, 8, 9], q=1, **{'z': 2}) %}{{ n + 1 }}{% endcall %}"
    "{% set z | trim %} {{ ns.t.split('E') | join('-') | title }}{% endset %}{{ z[::-1] }}"
    "{{ messages | tojson(indent=1, sort_keys=true) }}{{ messages | groupby('content') }}"
    "{{ '%5s|%-5d' % ('a', 3) }}{{ '{:>6}{x!r}'.format(1.5, x=messages) }}"
    "{{ ('[1, {\"a\": \"b\"}]' | from_json)[1].a }}{{ messages | sort(attribute='content') }}"
    "{{ ['b', 'A'] | unique | list | sort }}{{ {'b': 1, 'a': 2} | dictsort }}{{ z.center(40) }}"
    "{% filter indent %}{{ messages[0].content.splitlines() }}{% endfilter %}{{ range(9)[1:5] }}"
    "{{ messages | selectattr('content', 'in', ['one a', 'x']) | list | length }}";

static const char BUSY_CONTEXT[] = "{\"messages\": [{\"content\": \"one a\"}, {\"content\": "
                                   "\"two\\nlines e\"}, {\"content\": \"three a\"}, "
                                   "{\"content\": \"four\"}]}";

/* Cutting memory or steps at every place ends in a clean error, and more of them in the text. */
static void every_allocation_may_fail(void **state)
{
    enum status rc = ERR_LIMIT;
    struct jinja_result r;
    struct error err = {0};
    size_t bytes;

    (void)state;
    for (bytes = 16; rc != OK && bytes < MEMORY; bytes += 16) {
        struct jinja_options o = default_options();
        o.memory_bytes_max = bytes;
        rc = render(&r, BUSY, BUSY_CONTEXT, o, &err);
        assert_true(rc == OK || rc == ERR_LIMIT);
        jinja_result_release(&r);
    }
    assert_true(bytes > 10000 && bytes < 200000);
}

static void every_step_may_be_the_last(void **state)
{
    enum status rc = ERR_LIMIT;
    struct jinja_result r;
    struct error err = {0};
    size_t steps;

    (void)state;
    for (steps = 0; rc != OK && steps < STEPS; steps++) {
        struct jinja_options o = default_options();
        o.steps_max = steps;
        rc = render(&r, BUSY, BUSY_CONTEXT, o, &err);
        assert_true(rc == OK || rc == ERR_LIMIT);
        jinja_result_release(&r);
    }
    assert_true(steps > 300 && steps < 3000);
}

/* before * n, middle, after * n */
static char *repeated(const char *before, const char *middle, const char *after, size_t n)
{
    struct buf b;

    buf_init(&b);
    for (size_t i = 0; i < n; i++) {
        buf_append_str(&b, before);
    }
    buf_append_str(&b, middle);
    for (size_t i = 0; i < n; i++) {
        buf_append_str(&b, after);
    }
    return buf_take(&b);
}

static const struct {
    const char *open, *before, *middle, *after, *close;
} NESTED[] = {
    {"{{ ", "(", "1", ")", " }}"},
    {"{{ ", "[", "1", "]", " }}"},
    {"{{ ", "{1:", "1", "}", " }}"},
    {"{{ ", "-", "1", "", " }}"},
    {"{{ ", "not ", "1", "", " }}"},
    {"{{ ", "a[", "1", "]", " }}"},
    {"{{ ", "a(", "1", ")", " }}"},
    {"{{ ", "1 if 1 else ", "1", "", " }}"},
    {"{{ ", "", "1", "+1", " }}"},
    {"{{ ", "", "1", " and 1", " }}"},
    {"{{ ", "", "a", ".a", " }}"},
    {"{{ ", "", "a", "()", " }}"},
    {"{{ ", "", "a", "[0]", " }}"},
    {"{{ ", "", "a", "|trim", " }}"},
    {"{{ ", "", "a", " is defined", " }}"},
    {"{{ ", "1 ** (", "1", ")", " }}"},
    {"{{ ", "a|default(", "1", ")", " }}"},
    {"", "{% if 1 %}", "x", "{% endif %}", ""},
    {"", "{% for i in [1] %}", "x", "{% endfor %}", ""},
    {"", "{% if 0 %}{% else %}", "x", "{% endif %}", ""},
    {"", "{% macro m() %}", "x", "{% endmacro %}", ""},
    {"", "{% filter upper %}", "x", "{% endfilter %}", ""},
    {"", "{% set x %}", "x", "{% endset %}", ""},
    {"", "{% call m() %}", "x", "{% endcall %}", ""},
    {"{% for ", "(", "a", ",)", " in [1] %}{% endfor %}"},
    {"{% set ", "(", "a", ",)", " = 1 %}"},
};

/* Deep sources are refused while compiling, and what just passes renders in a small stack. */
static void deep_sources_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof NESTED / sizeof *NESTED; i++) {
        char *inner = repeated(NESTED[i].before, NESTED[i].middle, NESTED[i].after, 30000);
        struct buf source;
        struct jinja_template *t = NULL;
        struct error err = {0};
        assert_non_null(inner);
        buf_init(&source);
        buf_append_str(&source, NESTED[i].open);
        buf_append_str(&source, inner);
        buf_append_str(&source, NESTED[i].close);
        assert_int_equal(jinja_template_new(&t, (struct str){source.data, source.len}, &err),
                         ERR_FORMAT);
        assert_null(t);
        buf_release(&source);
        free(inner);
    }
}

static void render_deep(size_t n)
{
    for (size_t i = 0; i < sizeof NESTED / sizeof *NESTED; i++) {
        char *inner = repeated(NESTED[i].before, NESTED[i].middle, NESTED[i].after, n);
        struct buf source;
        struct jinja_result r;
        struct error err = {0};
        buf_init(&source);
        buf_append_str(&source, NESTED[i].open);
        buf_append_str(&source, inner);
        buf_append_str(&source, NESTED[i].close);
        (void)render(&r, buf_cstr(&source), "{}", default_options(), &err);
        jinja_result_release(&r);
        buf_release(&source);
        free(inner);
    }
}

/* Every depth that compiles, and endless recursion inside it, in the stack of a worker thread. */
static void *use_little_stack(void *ctx)
{
    struct jinja_result r;
    struct error err = {0};

    (void)ctx;
    for (size_t n = 60; n < 420; n += 40) {
        render_deep(n);
    }
    (void)render(&r,
                 "{% macro m(x) %}{% for i in [1] %}{% if 1 %}{% filter upper %}{{ m([m(x)]) }}"
                 "{% endfilter %}{% endif %}{% endfor %}{% endmacro %}{{ m(1) }}",
                 "{}", default_options(), &err);
    jinja_result_release(&r);
    return NULL;
}

static void depth_fits_a_small_stack(void **state)
{
    enum { STACK_BYTES = 4 << 20 }; /* sanitizers make frames several times larger */
    pthread_attr_t attr;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, use_little_stack, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attr);
}

/* Long but flat things are no problem. */
static void long_sources_render(void **state)
{
    enum { N = 10000 };
    char *elifs = repeated("{% if 0 %}", "", "", 1), *tilde = repeated("", "'a'", "~'a'", N);
    char *branches = repeated("", "", "{% elif 0 %}x", N);
    struct buf source;
    struct jinja_result r;
    struct error err = {0};

    (void)state;
    buf_init(&source);
    buf_append_str(&source, elifs);
    buf_append_str(&source, branches);
    buf_append_str(&source, "{% else %}else{% endif %}{{ (");
    buf_append_str(&source, tilde);
    buf_append_str(&source, ") | length }}");
    assert_int_equal(render(&r, buf_cstr(&source), "{}", default_options(), &err), OK);
    assert_string_equal(buf_cstr(&r.text), "else10001");
    jinja_result_release(&r);
    buf_release(&source);
    free(elifs);
    free(tilde);
    free(branches);
}

/* ---- cost ---- */

/* A conversation of n messages in a budget of n * per_message: a cost that grows faster fails. */
static void expect_linear(const char *source, size_t per_message)
{
    for (size_t n = 500; n <= 8000; n *= 4) {
        struct jinja_options o = default_options();
        struct jinja_result r;
        struct error err = {0};
        struct buf context;
        enum status rc;
        buf_init(&context);
        buf_append_str(&context, "{\"messages\": [");
        for (size_t i = 0; i < n; i++) {
            buf_appendf(&context,
                        "%s{\"role\": \"%s\", \"content\": \"message %zu of the test é\"}",
                        i ? "," : "", i % 2 ? "assistant" : "user", i);
        }
        buf_append_str(&context, "]}");
        o.steps_max = n * per_message;
        o.output_bytes_max = n * 200;
        o.memory_bytes_max = n * 8000;
        rc = render(&r, source, buf_cstr(&context), o, &err);
        if (rc != OK) {
            print_error("%zu messages: %s\n", n, err.text);
        }
        assert_int_equal(rc, OK);
        assert_true(r.text.len > n);
        jinja_result_release(&r);
        buf_release(&context);
    }
}

static void cost_is_linear(void **state)
{
    (void)state;
    expect_linear("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}", 40);
    expect_linear("{% set ns = namespace(t='') %}{% for m in messages %}"
                  "{% set ns.t = ns.t + m.role + ': ' + m.content %}{% endfor %}{{ ns.t }}",
                  60);
    expect_linear("{% set ns = namespace(l=[]) %}{% for m in messages %}"
                  "{% set ns.l = ns.l + [m.content] %}{% endfor %}{{ ns.l | join }}",
                  60);
    expect_linear(
        "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.last }}{{ loop.length }}"
        "{{ messages[loop.index0 - 1].role }}{% endfor %}",
        60);
    expect_linear(
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | "
        "join('\n') }}",
        60);
    expect_linear("{% for m in messages | reverse %}{% set x %}{{ m.content }}{% endset %}"
                  "{{ x.split(' ') | join('-') }}{% endfor %}",
                  80);
    expect_linear("{% for c in (messages | map(attribute='content') | join) %}{{ c }}{% endfor %}",
                  260);
    expect_linear("{{ messages | tojson }}", 40);
}

static void *render_shared(void *ctx)
{
    struct json_object *object = NULL;
    struct error err = {0};
    const char *failed = NULL;

    if (json_parse(&object, BUSY_CONTEXT, strlen(BUSY_CONTEXT), &err) != OK) {
        return (void *)"no context";
    }
    for (int i = 0; i < 20; i++) {
        const struct jinja_variables variables = {.object = object};
        struct jinja_options o = default_options();
        struct jinja_result r;
        o.variables = &variables;
        o.n_variables = 1;
        failed =
            jinja_render(&r, ctx, &o, &err) == OK && r.text.len > 100 ? failed : "not rendered";
        jinja_result_release(&r);
    }
    json_object_put(object);
    return (void *)failed;
}

/* One compiled template, several renderings at a time (the thread sanitizer looks on). */
static void threads_share_a_template(void **state)
{
    enum { N_THREADS = 3 };
    pthread_t threads[N_THREADS];
    struct jinja_template *t = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(jinja_template_new(&t, str_of(BUSY), &err), OK);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, render_shared, t), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    jinja_template_free(t);
}

static void reads_are_known(void **state)
{
    struct jinja_template *t = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(
        jinja_template_new(&t, STR("{% if enable_thinking %}{% set other = 1 %}{% endif %}"), &err),
        OK);
    assert_true(jinja_template_reads(t, STR("enable_thinking")));
    assert_false(jinja_template_reads(t, STR("other")));
    assert_false(jinja_template_reads(t, STR("tools")));
    jinja_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_python),         cmocka_unit_test(marks_follow_the_text),
        cmocka_unit_test(marks_of_structures),       cmocka_unit_test(marks_do_not_compare),
        cmocka_unit_test(strings_that_share_memory), cmocka_unit_test(errors_carry_the_line),
        cmocka_unit_test(the_watched_item_is_named), cmocka_unit_test(limits_end_a_rendering),
        cmocka_unit_test(deep_sources_are_refused),  cmocka_unit_test(depth_fits_a_small_stack),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(every_step_may_be_the_last),
        cmocka_unit_test(long_sources_render),       cmocka_unit_test(cost_is_linear),
        cmocka_unit_test(threads_share_a_template),  cmocka_unit_test(reads_are_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
