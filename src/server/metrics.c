/* metrics.c - counters and their text. See metrics.h. */
#include "server/metrics.h"

#include <string.h>

#include "base/json.h"

/* Doubling from 1 ms: fine where tokens are, coarse where whole answers are. */
static double bucket_bound(size_t i)
{
    return 0.001 * (double)(1u << i) * (i >= 8 ? (double)(1u << (i - 8)) : 1.0);
}

void histogram_add(struct histogram *h, double seconds)
{
    size_t i = 0;

    while (i < HISTOGRAM_BUCKETS && seconds > bucket_bound(i)) {
        i++;
    }
    h->counts[i]++;
    h->sum += seconds;
}

void metrics_count_answer(struct metrics *m, int status)
{
    for (size_t i = 0; i < METRICS_STATUSES; i++) {
        if (m->answers[i].n == 0) {
            m->answers[i].status = status;
        }
        if (m->answers[i].status == status) {
            m->answers[i].n++;
            return;
        }
    }
}

void metrics_count_choice(struct metrics *m, const struct engine_event *done)
{
    m->finished[done->kind == ENGINE_EVENT_ERROR ? FINISH_ERROR : done->reason]++;
    m->prompt_tokens += done->n_prompt;
    m->output_tokens += done->n_output;
    m->cached_tokens += done->n_cached;
    histogram_add(&m->queue, done->queue_s);
    histogram_add(&m->prefill, done->prefill_s);
    histogram_add(&m->decode, done->decode_s);
}

static void write_help(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_appendf(out, "# HELP spillway_%s %s\n# TYPE spillway_%s %s\n", name, help, name, type);
}

/* label: {model_name="..."} without the closing brace, so that more labels can follow. */
static void write_number(struct buf *out, const char *label, const char *name, const char *type,
                         const char *help, double v)
{
    write_help(out, name, type, help);
    buf_appendf(out, "spillway_%s%s} %.17g\n", name, label, v);
}

static void write_histogram(struct buf *out, const char *label, const char *name, const char *help,
                            const struct histogram *h)
{
    uint64_t n = 0;

    write_help(out, name, "histogram", help);
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->counts[i];
        buf_appendf(out, "spillway_%s_bucket%s,le=\"%g\"} %llu\n", name, label, bucket_bound(i),
                    (unsigned long long)n);
    }
    n += h->counts[HISTOGRAM_BUCKETS];
    buf_appendf(out, "spillway_%s_bucket%s,le=\"+Inf\"} %llu\n", name, label,
                (unsigned long long)n);
    buf_appendf(out, "spillway_%s_sum%s} %.9g\nspillway_%s_count%s} %llu\n", name, label, h->sum,
                name, label, (unsigned long long)n);
}

static void write_engine(struct buf *out, const char *label, const struct engine_stats *e)
{
    const struct state_counts *s = &e->state;
    double used = s->pages_total > 0 ? (double)s->pages_used / (double)s->pages_total : 0;

    write_number(out, label, "num_requests_running", "gauge", "Sequences in the batch.",
                 (double)e->n_running);
    write_number(out, label, "num_requests_waiting", "gauge", "Sequences in the queue.",
                 (double)e->n_queued);
    write_number(out, label, "kv_cache_usage_ratio", "gauge", "Share of KV pages in use.", used);
    write_number(out, label, "state_slots_used", "gauge", "Live recurrent states in use.",
                 (double)s->live_used);
    write_number(out, label, "state_snapshots_used", "gauge", "State snapshots in use.",
                 (double)s->snapshots_used);
    write_number(out, label, "engine_requests_total", "counter", "Sequences submitted.",
                 (double)e->n_requests);
    write_number(out, label, "engine_aborted_total", "counter", "Sequences cancelled.",
                 (double)e->n_aborted);
    write_number(out, label, "engine_failed_total", "counter", "Sequences that ended in an error.",
                 (double)e->n_failed);
    write_number(out, label, "engine_prompt_tokens_total", "counter", "Prompt tokens computed.",
                 (double)e->prompt_tokens);
    write_number(out, label, "engine_output_tokens_total", "counter", "Tokens generated.",
                 (double)e->output_tokens);
    write_number(out, label, "engine_steps_total", "counter", "Steps of the model.",
                 (double)e->steps);
    write_number(out, label, "engine_prefill_seconds_total", "counter", "Time spent in prefill.",
                 e->prefill_s);
    write_number(out, label, "engine_decode_seconds_total", "counter", "Time spent in decode.",
                 e->decode_s);
}

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* Counts are distinct experts of a layer and step, summed. */
static void write_experts(struct buf *out, const char *label, const struct offload_stats *o)
{
    double hits = (double)o->n_hits, fetched = (double)o->n_fetched, cpu = (double)o->n_cpu;
    double ahead = (double)o->n_next, streamed = (double)o->n_streamed;
    double block = (double)o->block_bytes;

    write_number(out, label, "offload_expert_slots", "gauge",
                 "Experts that fit the device at once.", (double)o->n_slots);
    write_number(out, label, "offload_experts", "gauge", "Experts that share the slots.",
                 (double)(o->n_layers * o->n_experts));
    write_number(out, label, "offload_expert_bytes", "gauge", "Bytes of one expert.", block);
    write_number(out, label, "offload_pageable_layers", "gauge",
                 "Layers whose experts the device cannot read in host memory.",
                 (double)o->n_pageable);
    write_number(out, label, "offload_inserted_total", "counter",
                 "Experts brought to the device between steps.", (double)o->n_inserted);
    write_number(out, label, "offload_hits_total", "counter", "Experts of small steps with a slot.",
                 hits);
    write_help(out, "offload_misses_total", "counter", "Experts of small steps without one.");
    buf_appendf(out,
                "spillway_offload_misses_total%s,engine=\"link\"} %.17g\n"
                "spillway_offload_misses_total%s,engine=\"cpu\"} %.17g\n",
                label, fetched, label, cpu);
    write_number(out, label, "offload_in_place_total", "counter",
                 "Those over the link that were read there and not kept.", (double)o->n_in_place);
    write_number(out, label, "offload_failed_total", "counter",
                 "Layers of a step for which the CPU had no answer.", (double)o->n_failed);
    write_number(out, label, "offload_hit_ratio", "gauge", "Hits among them, since the start.",
                 ratio(hits, hits + fetched + cpu));
    write_number(out, label, "offload_prefetched_total", "counter",
                 "Experts fetched before they were chosen.", ahead);
    write_number(out, label, "offload_prefetched_used_total", "counter",
                 "Those of them that were chosen in the same step.", (double)o->n_next_used);
    write_number(out, label, "offload_prefetch_accuracy", "gauge", "The latter by the former.",
                 ratio((double)o->n_next_used, ahead));
    write_number(out, label, "offload_streamed_total", "counter",
                 "Experts that large steps brought past the device.", streamed);
    write_number(out, label, "offload_large_cpu_total", "counter",
                 "Experts of large steps that the CPU computed.", (double)o->n_large_cpu);
}

static void write_engines(struct buf *out, const char *label, const struct offload_stats *o)
{
    double over_link = (double)o->n_fetched + (double)o->n_next + (double)o->n_streamed;

    write_number(out, label, "offload_link_bytes_total", "counter",
                 "Bytes of experts that went over the link.", over_link * (double)o->block_bytes);
    write_number(out, label, "offload_cpu_bytes_total", "counter",
                 "Bytes of experts that the CPU computed with.",
                 ((double)o->n_cpu + (double)o->n_large_cpu) * (double)o->block_bytes);
    write_number(out, label, "offload_cpu_seconds_total", "counter",
                 "Time in which the CPU computed misses.", (double)o->cpu_ns * 1e-9);
    write_number(out, label, "offload_cpu_wait_seconds_total", "counter",
                 "Time from questions to the CPU to its answers.", (double)o->cpu_wait_ns * 1e-9);
    write_number(out, label, "offload_large_cpu_seconds_total", "counter",
                 "Time in which the CPU computed experts of large steps.",
                 (double)o->large_cpu_ns * 1e-9);
    write_number(out, label, "offload_link_bytes_per_second", "gauge",
                 "Speed of fetches, as measured of late.", o->fetch_bytes_per_s);
    write_number(out, label, "offload_cpu_bytes_per_second", "gauge",
                 "Speed of the CPU with misses, as measured of late.", o->cpu_bytes_per_s);
    write_number(out, label, "offload_fetch_share", "gauge",
                 "Share of misses that are fetched, as decided of late.", o->fetch_share);
    write_number(out, label, "offload_overlap_ratio", "gauge",
                 "Share of the time of misses in which link and CPU both served them.",
                 offload_overlap(o));
    write_help(out, "offload_steps_total", "counter", "Steps with experts that overflow.");
    buf_appendf(out,
                "spillway_offload_steps_total%s,size=\"small\"} %llu\n"
                "spillway_offload_steps_total%s,size=\"large\"} %llu\n",
                label, (unsigned long long)o->n_steps, label, (unsigned long long)o->n_large_steps);
}

static void write_answers(struct buf *out, const char *label, const struct metrics *m)
{
    static const char *const reasons[] = {"none", "stop", "length", "abort", "error"};

    write_help(out, "http_responses_total", "counter", "HTTP answers by status.");
    for (size_t i = 0; i < METRICS_STATUSES && m->answers[i].n > 0; i++) {
        buf_appendf(out, "spillway_http_responses_total%s,code=\"%d\"} %llu\n", label,
                    m->answers[i].status, (unsigned long long)m->answers[i].n);
    }
    write_help(out, "request_success_total", "counter", "Finished choices by reason.");
    for (size_t i = FINISH_STOP; i <= FINISH_ERROR; i++) {
        buf_appendf(out, "spillway_request_success_total%s,finished_reason=\"%s\"} %llu\n", label,
                    reasons[i], (unsigned long long)m->finished[i]);
    }
}

/* Label values escape what JSON escapes, in the same way, for all text that a name may hold. */
static void write_label(struct buf *out, const char *model_name)
{
    buf_append_str(out, "{model_name=");
    json_write_string(out, model_name, strlen(model_name));
}

void metrics_write(struct buf *out, const struct metrics *m, const struct metrics_gauges *g)
{
    struct buf label;
    const char *l;

    buf_init(&label);
    write_label(&label, g->model_name);
    l = buf_cstr(&label);
    write_number(out, l, "connections", "gauge", "Open connections.", (double)g->n_connections);
    write_number(out, l, "max_running_requests", "gauge", "Sequences that may run at once.",
                 (double)g->max_running);
    write_answers(out, l, m);
    write_number(out, l, "prompt_tokens_total", "counter", "Prompt tokens of finished choices.",
                 (double)m->prompt_tokens);
    write_number(out, l, "generation_tokens_total", "counter", "Tokens of finished choices.",
                 (double)m->output_tokens);
    write_number(out, l, "prompt_tokens_cached_total", "counter",
                 "Prompt tokens taken from a cache.", (double)m->cached_tokens);
    write_histogram(out, l, "time_to_first_token_seconds", "Request to first token.",
                    &m->first_token);
    write_histogram(out, l, "e2e_request_latency_seconds", "Request to end of answer.", &m->whole);
    write_histogram(out, l, "request_queue_time_seconds", "Time in the queue.", &m->queue);
    write_histogram(out, l, "request_prefill_time_seconds", "Time in prefill.", &m->prefill);
    write_histogram(out, l, "request_decode_time_seconds", "Time in decode.", &m->decode);
    if (g->engine) {
        write_engine(out, l, g->engine);
    }
    if (g->offload) {
        write_experts(out, l, g->offload);
        write_engines(out, l, g->offload);
    }
    if (!buf_ok(&label)) {
        out->failed = true;
    }
    buf_release(&label);
}
