/* template_fuzz.c - a template and its variables through the Jinja engine.
 *
 * Input: the template, a NUL byte, and the variables as a JSON object (without it: a fixed one).
 * Checks: runs make up the text, alternate, and are UTF-8; a character that only the variables hold
 * never comes out in a trusted run. Limits are small, so that each input ends quickly. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"

enum { STEPS_MAX = 20000, OUTPUT_BYTES_MAX = 1 << 16, MEMORY_BYTES_MAX = 8 << 20 };

static const char MARKER[] = "\xc2\xa7"; /* U+00A7: no other character's case leads to it */

static const char CONTEXT[] =
    "{\"s\": \"text \xc2\xa7\", \"i\": 7, \"d\": 2.5, \"n\": null, \"t\": true, \"l\": [3, 1, "
    "\"\xc2\xa7\"],"
    "\"m\": {\"a\": 1, \"\xc2\xa7\": [\"\xc2\xa7\"]}, \"messages\": [{\"role\": \"user\", "
    "\"content\": "
    "\"hi \xc2\xa7\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
    "[{\"function\": "
    "{\"name\": \"f\xc2\xa7\", \"arguments\": {\"x\": [1.0, \"\xc2\xa7\"]}}}]}], \"tools\": null, "
    "\"add_generation_prompt\": true}";

/* A template may spell the marker itself: as it is, or by an escape or an HTML entity. */
static bool may_make_marker(struct str source)
{
    return memchr(source.ptr, '\\', source.len) || str_find(source, str_of(MARKER)) != SIZE_MAX;
}

static void check(const struct jinja_result *r, struct str source)
{
    size_t at = 0;

    for (size_t i = 0; i < r->n_runs; i++) {
        struct str text = r->runs[i].text;
        if (text.len == 0 || text.ptr != r->text.data + at ||
            utf8_valid_prefix(text.ptr, text.len) != text.len ||
            (i > 0 && r->runs[i].is_trusted == r->runs[i - 1].is_trusted)) {
            abort();
        }
        if (r->runs[i].is_trusted && !may_make_marker(source) &&
            str_find(text, str_of(MARKER)) != SIZE_MAX) {
            abort();
        }
        at += text.len;
    }
    if (at != r->text.len) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    struct str source = {(const char *)data, end ? (size_t)(end - data) : size};
    struct str context = str_of(CONTEXT);
    struct json_object *object = NULL;
    struct jinja_template *t = NULL;
    struct jinja_result r;
    struct error err;

    if (end && (size_t)(end - data) + 1 < size) {
        context = (struct str){(const char *)end + 1, size - source.len - 1};
    }
    if (json_parse(&object, context.ptr, context.len, &err) != OK ||
        !json_object_is_type(object, json_type_object)) {
        json_object_put(object);
        return 0;
    }
    if (jinja_template_new(&t, source, &err) == OK) {
        const struct jinja_variables variables = {.object = object};
        const struct jinja_options o = {.variables = &variables,
                                        .n_variables = 1,
                                        .watched = "messages",
                                        .steps_max = STEPS_MAX,
                                        .output_bytes_max = OUTPUT_BYTES_MAX,
                                        .memory_bytes_max = MEMORY_BYTES_MAX,
                                        .now_s = 1767225599,
                                        .roles_trusted = true};
        enum status rc = jinja_render(&r, t, &o, &err);
        if (rc == OK) {
            check(&r, source);
        } else if (utf8_valid_prefix(err.text, strlen(err.text)) != strlen(err.text)) {
            abort();
        }
        jinja_result_release(&r);
        jinja_template_free(t);
    }
    json_object_put(object);
    return 0;
}
