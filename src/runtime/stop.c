/* stop.c - one Knuth-Morris-Pratt automaton per stop string, stepped byte by byte.
 *
 * Idea:      an automaton's state is the length of the longest end of the input that begins its string.
 *            The longest state over all strings is therefore exactly what must be held back. Stop
 *            strings are valid UTF-8, so a held end begins at a character's first byte.
 * Trade-off: one Aho-Corasick automaton would step once per byte instead of once per string, but a
 *            request has one or two stop strings. */
#include "runtime/stop.h"

#include <stdlib.h>

_Static_assert(STOP_STRING_BYTES_MAX < UINT16_MAX, "lengths and states are 16 bit");

static void make_borders(struct stop_string *s)
{
    uint16_t k = 0;

    s->border[0] = 0;
    if (s->len > 0) {
        s->border[1] = 0;
    }
    for (uint16_t i = 1; i < s->len; i++) {
        while (k > 0 && s->text[i] != s->text[k]) {
            k = s->border[k];
        }
        if (s->text[i] == s->text[k]) {
            k++;
        }
        s->border[i + 1] = k;
    }
}

/* Reads one byte; true when the string is complete. */
static bool step(struct stop_string *s, char c)
{
    if (s->state == s->len) { /* never with one match at most, but the automaton stays whole */
        s->state = s->border[s->state];
    }
    while (s->state > 0 && s->text[s->state] != c) {
        s->state = s->border[s->state];
    }
    if (s->text[s->state] == c) {
        s->state++;
    }
    return s->state == s->len;
}

static enum status check_strings(const struct str *strings, size_t n, struct error *err)
{
    if (n > STOP_STRINGS_MAX) {
        return error_set_param(err, ERR_BAD_REQUEST, "stop",
                               "stop has %zu strings, at most %d are allowed", n, STOP_STRINGS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        if (strings[i].len == 0 || strings[i].len > STOP_STRING_BYTES_MAX) {
            return error_set_param(err, ERR_BAD_REQUEST, "stop",
                                   "stop string %zu has %zu bytes, 1 to %d are allowed", i,
                                   strings[i].len, STOP_STRING_BYTES_MAX);
        }
        if (utf8_valid_prefix(strings[i].ptr, strings[i].len) != strings[i].len) {
            return error_set_param(err, ERR_BAD_REQUEST, "stop", "stop string %zu is not UTF-8", i);
        }
    }
    return OK;
}

enum status stop_init(struct stop *s, const struct str *strings, size_t n, bool keeps_match,
                      struct error *err)
{
    enum status rc;

    memset(s, 0, sizeof *s);
    s->keeps_match = keeps_match;
    s->matched = -1;
    rc = check_strings(strings, n, err);
    if (rc != OK || n == 0) {
        return rc;
    }
    s->strings = calloc(n, sizeof *s->strings);
    if (!s->strings) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu stop strings", n);
    }
    for (size_t i = 0; i < n; i++) {
        struct stop_string *one = &s->strings[s->n_strings++];

        one->len = (uint16_t)strings[i].len;
        one->text = malloc(strings[i].len);
        one->border = malloc((strings[i].len + 1) * sizeof *one->border);
        if (!one->text || !one->border) {
            stop_release(s);
            return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu stop strings", n);
        }
        memcpy(one->text, strings[i].ptr, strings[i].len);
        make_borders(one);
    }
    return OK;
}

void stop_release(struct stop *s)
{
    for (size_t i = 0; i < s->n_strings; i++) {
        free(s->strings[i].text);
        free(s->strings[i].border);
    }
    free(s->strings);
    s->strings = NULL;
    s->n_strings = 0;
}

/* Steps all automata; sets matched to the longest string that is complete now. Returns the longest
 * state, which is how many bytes must stay held. */
static size_t step_all(struct stop *s, char c)
{
    size_t longest = 0;

    for (size_t i = 0; i < s->n_strings; i++) {
        if (step(&s->strings[i], c) &&
            (s->matched < 0 || s->strings[i].len > s->strings[s->matched].len)) {
            s->matched = (int)i;
        }
        if (s->strings[i].state > longest) {
            longest = s->strings[i].state;
        }
    }
    return longest;
}

/* Lets out the first n of the virtual text `held + fresh`. */
static void let_out(struct stop *s, struct str fresh, size_t n, struct buf *out)
{
    size_t from_held = n < s->n_held ? n : s->n_held;

    buf_append(out, s->held, from_held);
    memmove(s->held, s->held + from_held, s->n_held - from_held);
    s->n_held -= from_held;
    buf_append(out, fresh.ptr, n - from_held);
}

bool stop_push(struct stop *s, struct str text, struct buf *out)
{
    size_t keep = s->n_held;
    size_t read = 0;

    if (s->n_strings == 0) {
        buf_append(out, text.ptr, text.len);
        return false;
    }
    if (s->matched >= 0 || text.len == 0) {
        return s->matched >= 0;
    }
    while (read < text.len && s->matched < 0) {
        keep = step_all(s, text.ptr[read++]);
    }
    size_t n_seen = s->n_held + read;
    if (s->matched >= 0) {
        size_t match = s->keeps_match ? 0 : s->strings[s->matched].len;

        let_out(s, text, n_seen - match, out);
        s->n_held = 0;
        return true;
    }
    /* Let out all but the last `keep` bytes; what of these is in the fresh text moves to held. */
    size_t n_out = n_seen - keep;
    size_t fresh_out = n_out > s->n_held ? n_out - s->n_held : 0;
    let_out(s, text, n_out, out);
    memcpy(s->held + s->n_held, text.ptr + fresh_out, read - fresh_out);
    s->n_held += read - fresh_out;
    return false;
}

void stop_finish(struct stop *s, struct buf *out)
{
    buf_append(out, s->held, s->n_held);
    s->n_held = 0;
}
