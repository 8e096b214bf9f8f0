/* line_history.c - see line_history.h. */
#include "cli/line_history.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file_map.h"

/* Takes entry (malloc'd). */
static void push(struct line_history *h, char *entry)
{
    if (h->n == HISTORY_ENTRIES_MAX) {
        free(h->entries[0]);
        memmove(h->entries, h->entries + 1, (HISTORY_ENTRIES_MAX - 1) * sizeof h->entries[0]);
        h->n--;
    }
    h->entries[h->n++] = entry;
}

/* The entry that a line of the file stands for; NULL when it is damaged. */
static char *unescape(const char *line, size_t len)
{
    struct buf b;
    buf_init(&b);
    bool ok = len > 0 && utf8_valid_prefix(line, len) == len;
    for (size_t i = 0; ok && i < len; i++) {
        char c = line[i];
        if (c == '\\' && i + 1 < len) {
            i++;
            c = line[i] == 'n' ? '\n' : line[i];
        }
        ok = (unsigned char)c >= 0x20 || c == '\n' || c == '\t';
        buf_append_char(&b, c);
    }
    char *entry = ok ? buf_take(&b) : NULL;
    buf_release(&b);
    return entry;
}

void line_history_init(struct line_history *h, const char *path)
{
    char *text = NULL;
    size_t len = 0;
    *h = (struct line_history){.path = path};
    if (!path || file_read(&text, &len, path, HISTORY_FILE_BYTES_MAX, NULL) != OK) {
        return;
    }
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (text + at)) : len - at;
        char *entry = unescape(text + at, n);
        if (entry) {
            push(h, entry);
        }
        at += n + 1;
    }
    free(text);
}

void line_history_release(struct line_history *h)
{
    for (size_t i = 0; i < h->n; i++) {
        free(h->entries[i]);
    }
    h->n = 0;
}

static void append_to_file(const char *path, struct str text)
{
    struct buf line;
    buf_init(&line);
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '\n') {
            buf_append_str(&line, "\\n");
        } else if (c == '\\') {
            buf_append_str(&line, "\\\\");
        } else {
            buf_append_char(&line, c);
        }
    }
    buf_append_char(&line, '\n');
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        ssize_t n = buf_ok(&line) ? write(fd, line.data, line.len) : 0;
        (void)n;
        close(fd);
    }
    buf_release(&line);
}

void line_history_add(struct line_history *h, struct str text)
{
    if (text.len == 0 || (h->n > 0 && str_eq(str_of(h->entries[h->n - 1]), text))) {
        return;
    }
    char *entry = malloc(text.len + 1);
    if (!entry) {
        return;
    }
    memcpy(entry, text.ptr, text.len);
    entry[text.len] = '\0';
    push(h, entry);
    if (h->path) {
        append_to_file(h->path, text);
    }
}
