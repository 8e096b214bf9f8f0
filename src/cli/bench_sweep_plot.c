/* bench_sweep_plot.c - a sweep as a picture: a panel for each case, speed over budget. See bench_sweep.h.
 *
 * A line for each way to quantise and each routing; above its points, bars of the same colour are the
 * bounds. Budgets stand at equal distances, for they are few and chosen by hand. */
#include <math.h>
#include <string.h>

#include "cli/bench_report.h"
#include "cli/bench_sweep.h"
#include "cli/svg_text.h"

enum {
    WIDTH = 900,
    MARGIN = 24,
    TITLE_HEIGHT = 84,
    PANEL_HEAD = 44,
    PANEL_HEIGHT = 220,
    PANEL_FOOT = 34,
    AXIS_X = 90,
    PLOT_WIDTH = 600,
    BOUND_HALF = 9,
    GRID_LINES = 4,
    LEGEND_X = AXIS_X + PLOT_WIDTH + 30,
    LEGEND_LINE = 20
};

static const char COLOUR_INK[] = "#263238", COLOUR_PALE[] = "#607d8b", COLOUR_GRID[] = "#cfd8dc";
static const char *const colours[SWEEP_DENSE * SWEEP_ROUTINGS] = {"#00796b", "#c62828", "#1565c0",
                                                                  "#ef6c00", "#6a1b9a", "#558b2f"};

struct panel {
    const struct sweep *s;
    size_t row;  /* of every point's result */
    double most; /* tok/s at the top */
    int y;       /* of the top */
};

static const struct sweep_point *point_at(const struct sweep *s, size_t dense, size_t budget,
                                          size_t routing)
{
    const struct sweep_plan *p = s->plan;

    return &s->points[(dense * p->n_budgets + budget) * p->n_routings + routing];
}

static const struct bench_row *row_of(const struct sweep_point *p, size_t row)
{
    return row < p->result.n_rows ? &p->result.rows[row] : NULL;
}

static double x_of(const struct sweep *s, size_t budget)
{
    return AXIS_X + (double)PLOT_WIDTH * ((double)budget + 0.5) / (double)s->plan->n_budgets;
}

static double y_of(const struct panel *p, double tok_s)
{
    return p->y + PANEL_HEIGHT * (1 - tok_s / p->most);
}

static double most_of(const struct sweep *s, size_t row)
{
    double most = 0;

    for (size_t i = 0; i < s->n_points; i++) {
        const struct bench_row *r = row_of(&s->points[i], row);

        if (r) {
            most = fmax(most, r->tok_s.median);
            most = fmax(most, isfinite(r->bound_tok_s) ? r->bound_tok_s : 0);
        }
    }
    return most;
}

static void put_line(struct buf *out, double x1, double y1, double x2, double y2,
                     const char *colour, int width)
{
    buf_appendf(out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"%d\"/>\n",
                x1, y1, x2, y2, colour, width);
}

static void put_axes(struct buf *out, const struct panel *p)
{
    char text[64];

    for (int i = 0; i <= GRID_LINES; i++) {
        double v = p->most * i / GRID_LINES, y = y_of(p, v);

        put_line(out, AXIS_X, y, AXIS_X + PLOT_WIDTH, y, COLOUR_GRID, 1);
        snprintf(text, sizeof text, "%.0f", v);
        svg_text(out, AXIS_X - 8, (int)y + 4, 12, "end", COLOUR_PALE, text);
    }
    for (size_t b = 0; b < p->s->plan->n_budgets; b++) {
        double budget = p->s->plan->budgets[b];

        snprintf(text, sizeof text, budget > 0 ? "%g GiB" : "all", budget);
        svg_text(out, (int)x_of(p->s, b), p->y + PANEL_HEIGHT + 18, 12, "middle", COLOUR_PALE,
                 text);
    }
}

static void put_series(struct buf *out, const struct panel *p, size_t dense, size_t routing)
{
    size_t series = dense * p->s->plan->n_routings + routing;
    const char *colour = colours[series % (sizeof colours / sizeof *colours)];
    double last_x = NAN, last_y = NAN;
    char text[96];

    for (size_t b = 0; b < p->s->plan->n_budgets; b++) {
        const struct bench_row *r = row_of(point_at(p->s, dense, b, routing), p->row);
        double x = x_of(p->s, b), y, bound;

        if (!r) {
            continue;
        }
        y = y_of(p, r->tok_s.median);
        if (isfinite(last_x)) {
            put_line(out, last_x, last_y, x, y, colour, 2);
        }
        buf_appendf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, colour);
        if (isfinite(r->bound_tok_s)) {
            bound = y_of(p, r->bound_tok_s);
            put_line(out, x - BOUND_HALF, bound, x + BOUND_HALF, bound, colour, 2);
        }
        last_x = x;
        last_y = y;
    }
    snprintf(text, sizeof text, "dense %s, %s", p->s->plan->dense[dense],
             p->s->plan->routings[routing]);
    svg_text(out, LEGEND_X, p->y + 12 + LEGEND_LINE * (int)series, 12, "start", colour, text);
}

/* Returns the height used; 0 when no point has this case. */
static int put_panel(struct buf *out, const struct sweep *s, size_t row, int y)
{
    struct panel p = {.s = s, .row = row, .most = most_of(s, row), .y = y + PANEL_HEAD};
    char label[64], text[96];

    if (p.most <= 0) {
        return 0;
    }
    for (size_t i = 0; i < s->n_points; i++) {
        if (row_of(&s->points[i], row)) {
            bench_row_label(label, sizeof label, row_of(&s->points[i], row));
        }
    }
    snprintf(text, sizeof text, "%s, tok/s", label);
    svg_text(out, MARGIN, y + 28, 15, "start", COLOUR_INK, text);
    put_axes(out, &p);
    for (size_t d = 0; d < s->plan->n_dense; d++) {
        for (size_t r = 0; r < s->plan->n_routings; r++) {
            put_series(out, &p, d, r);
        }
    }
    return PANEL_HEAD + PANEL_HEIGHT + PANEL_FOOT;
}

enum status sweep_svg(struct buf *out, const struct sweep *s, struct error *err)
{
    struct buf body;
    size_t n_rows = 0;
    int y = TITLE_HEIGHT;
    char text[512];
    bool ok;

    buf_init(&body);
    snprintf(text, sizeof text, "spillway %s: %s", SPILLWAY_VERSION, s->flags->model_path);
    svg_text(&body, MARGIN, 30, 18, "start", COLOUR_INK, text);
    snprintf(text, sizeof text, "%s; %s", s->card_name, s->cpu_name);
    svg_text(&body, MARGIN, 52, 13, "start", COLOUR_PALE, text);
    svg_text(&body, MARGIN, 70, 13, "start", COLOUR_PALE,
             "speed over the memory that the card may use; bars: the bound");
    for (size_t i = 0; i < s->n_points; i++) {
        n_rows = s->points[i].result.n_rows > n_rows ? s->points[i].result.n_rows : n_rows;
    }
    for (size_t row = 0; row < n_rows; row++) {
        y += put_panel(&body, s, row, y);
    }
    svg_page(out, WIDTH, y + MARGIN, &body);
    ok = buf_ok(&body) && buf_ok(out);
    buf_release(&body);
    return ok ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the picture");
}
