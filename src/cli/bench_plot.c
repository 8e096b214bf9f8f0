/* bench_plot.c - the picture: a bar for each case, achieved within bound. See bench_report.h.
 *
 * Prompts and generation differ by an order of magnitude, so each has a scale of its own. Plain SVG
 * without scripts or style sheets: it shows the same in a browser, an editor and a repository. */
#include <math.h>
#include <string.h>

#include "cli/bench_report.h"
#include "cli/svg_text.h"

enum {
    WIDTH = 1040,
    MARGIN = 24,
    BARS_X = 250, /* left of it stand the labels */
    BARS_WIDTH = 460,
    ROW_HEIGHT = 26,
    BAR_HEIGHT = 16,
    TITLE_HEIGHT = 84,
    PANEL_HEAD = 40,
    FOOT_HEIGHT = 56
};

static const char COLOUR_BOUND[] = "#cfd8dc", COLOUR_REACHED[] = "#00796b",
                  COLOUR_INK[] = "#263238", COLOUR_PALE[] = "#607d8b", COLOUR_SPREAD[] = "#212121";

static void put_bar(struct buf *out, int y, double width, const char *colour)
{
    buf_appendf(out, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", BARS_X,
                y, width, BAR_HEIGHT, colour);
}

/* Pixels of v; 0 for what cannot be drawn. */
static double pixels(double v, double most)
{
    double x = v / most * BARS_WIDTH;

    return isfinite(x) && x > 0 ? fmin(x, BARS_WIDTH) : 0;
}

static double most_of(const struct bench_result *r, enum bench_kind kind)
{
    double most = 0;

    for (size_t i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];

        if (row->kind == kind) {
            most = fmax(most, isfinite(row->bound_tok_s) ? row->bound_tok_s : 0);
            most = fmax(most, isfinite(row->tok_s.most) ? row->tok_s.most : 0);
        }
    }
    return most;
}

static void put_row(struct buf *out, const struct bench_result *r, const struct bench_row *row,
                    int y, double most)
{
    double low = pixels(row->tok_s.least, most), high = pixels(row->tok_s.most, most);
    double share = 100 * row->tok_s.median / row->bound_tok_s;
    char text[96];

    bench_row_label(text, sizeof text, row);
    if (r->n_bounds > 1) {
        size_t len = strlen(text);
        snprintf(text + len, sizeof text - len, ", %zu thr", row->n_threads);
    }
    svg_text(out, BARS_X - 8, y + 13, 13, "end", COLOUR_INK, text);
    put_bar(out, y, pixels(row->bound_tok_s, most), COLOUR_BOUND);
    put_bar(out, y, pixels(row->tok_s.median, most), COLOUR_REACHED);
    buf_appendf(out,
                "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\" "
                "stroke-width=\"2\"/>\n",
                BARS_X + low, y + BAR_HEIGHT / 2, BARS_X + high, y + BAR_HEIGHT / 2, COLOUR_SPREAD);
    if (isfinite(share) && isfinite(row->bound_tok_s)) {
        snprintf(text, sizeof text, "%.1f of %.1f tok/s, %.0f %% (%s)", row->tok_s.median,
                 row->bound_tok_s, share, bench_bound_name(r, row));
    } else {
        snprintf(text, sizeof text, "no bound");
    }
    svg_text(out, BARS_X + BARS_WIDTH + 8, y + 13, 12, "start", COLOUR_PALE, text);
}

/* Returns the height used; 0 when there is no such case. */
static int put_panel(struct buf *out, const struct bench_result *r, enum bench_kind kind, int y)
{
    double most = most_of(r, kind);
    int at = y + PANEL_HEAD;
    char text[64];

    if (most <= 0) {
        return 0;
    }
    snprintf(text, sizeof text, "%s, full width = %.0f tok/s",
             kind == BENCH_PREFILL ? "Reading prompts" : "Generating", most);
    svg_text(out, MARGIN, y + 24, 15, "start", COLOUR_INK, text);
    for (size_t i = 0; i < r->n_rows; i++) {
        if (r->rows[i].kind == kind) {
            put_row(out, r, &r->rows[i], at, most);
            at += ROW_HEIGHT;
        }
    }
    return at - y;
}

static void put_title(struct buf *out, const struct bench_report *r)
{
    char text[512];

    snprintf(text, sizeof text, "spillway %s: %s", SPILLWAY_VERSION, r->model_path);
    svg_text(out, MARGIN, 30, 18, "start", COLOUR_INK, text);
    snprintf(text, sizeof text, "%s, %s kernels; %.2f GB of weights", r->cpu, r->isa,
             (double)r->weight_bytes * 1e-9);
    svg_text(out, MARGIN, 52, 13, "start", COLOUR_PALE, text);
    snprintf(text, sizeof text, "%s activations, quantised matrices read %s, dense %s; routing: %s",
             r->dtype, r->activations, r->dense_quant, r->routing);
    svg_text(out, MARGIN, 70, 13, "start", COLOUR_PALE, text);
}

static void put_foot(struct buf *out, const struct bench_report *r, int y)
{
    char text[128];

    buf_appendf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", MARGIN,
                y + 18, COLOUR_REACHED);
    snprintf(text, sizeof text, "median of %zu runs (line: least to most)", r->plan->repeat);
    svg_text(out, MARGIN + 20, y + 30, 12, "start", COLOUR_PALE, text);
    buf_appendf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n",
                MARGIN + 330, y + 18, COLOUR_BOUND);
    svg_text(out, MARGIN + 350, y + 30, 12, "start", COLOUR_PALE,
             "what this machine's memory or arithmetic allows");
}

enum status bench_report_svg(struct buf *out, const struct bench_report *r, struct error *err)
{
    struct buf body;
    int y = TITLE_HEIGHT;

    buf_init(&body);
    put_title(&body, r);
    y += put_panel(&body, r->result, BENCH_PREFILL, y);
    y += put_panel(&body, r->result, BENCH_DECODE, y);
    put_foot(&body, r, y);
    svg_page(out, WIDTH, y + FOOT_HEIGHT, &body);
    bool ok = buf_ok(&body) && buf_ok(out);
    buf_release(&body);
    return ok ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the picture");
}
