/* svg_text.c - see svg_text.h. */
#include "cli/svg_text.h"

#include <string.h>

#include "base/str.h"

void svg_escaped(struct buf *out, const char *text)
{
    size_t len = strlen(text), valid = utf8_valid_prefix(text, len);

    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '<') {
            buf_append_str(out, "&lt;");
        } else if (c == '>') {
            buf_append_str(out, "&gt;");
        } else if (c == '&') {
            buf_append_str(out, "&amp;");
        } else if (c == '"') {
            buf_append_str(out, "&quot;");
        } else if (c < 0x20 || c == 0x7f || i >= valid) {
            buf_append_char(out, '?');
        } else {
            buf_append_char(out, (char)c);
        }
    }
}

void svg_text(struct buf *out, int x, int y, int size, const char *anchor, const char *colour,
              const char *text)
{
    buf_appendf(out, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">", x,
                y, size, anchor, colour);
    svg_escaped(out, text);
    buf_append_str(out, "</text>\n");
}

void svg_page(struct buf *out, int width, int height, struct buf *body)
{
    buf_appendf(out,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                width, height, width, height, width, height);
    buf_append_str(out, buf_cstr(body));
    buf_append_str(out, "</svg>\n");
}
