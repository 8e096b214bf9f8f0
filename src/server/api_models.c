/* api_models.c - what the server tells about itself: health, models, settings, metrics. */
#include <stdio.h>
#include <string.h>

#include "server/api.h"

/* --- health ------------------------------------------------------------------------------------- */

void api_health(struct server *s, struct conn *c)
{
    conn_reply(c, server_trouble(s) ? 503 : 200, NULL, "", 0);
}

void api_ready(struct server *s, struct conn *c)
{
    const char *trouble = server_trouble(s);
    struct buf b;

    buf_init(&b);
    buf_appendf(&b, "{\"status\":\"%s\"}", trouble ? trouble : "ready");
    conn_reply(c, trouble ? 503 : 200, "application/json", buf_cstr(&b), b.len);
    buf_release(&b);
}

void api_ping(struct server *s, struct conn *c)
{
    (void)s;
    conn_reply(c, 200, NULL, "", 0);
}

/* --- models ------------------------------------------------------------------------------------- */

static void write_card(struct buf *out, const struct server *s)
{
    const char *name = s->o.served_name;

    buf_append_str(out, "{\"id\":");
    json_write_string(out, name, strlen(name));
    buf_appendf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"spillway\",\"root\":",
                (long long)s->started_s);
    json_write_string(out, name, strlen(name));
    buf_appendf(out, ",\"parent\":null,\"max_model_len\":%zu}", s->model.context_length);
}

void api_models(struct server *s, struct conn *c)
{
    struct buf b;

    buf_init(&b);
    buf_append_str(&b, "{\"object\":\"list\",\"data\":[");
    write_card(&b, s);
    buf_append_str(&b, "]}");
    api_reply_json(c, &b);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Is the percent-encoded text the name? */
static bool is_encoded_name(struct str encoded, const char *name)
{
    size_t at = 0, n = strlen(name);

    for (size_t i = 0; i < encoded.len; i++) {
        int value = (unsigned char)encoded.ptr[i];
        if (encoded.ptr[i] == '%' && i + 2 < encoded.len && hex_digit(encoded.ptr[i + 1]) >= 0 &&
            hex_digit(encoded.ptr[i + 2]) >= 0) {
            value = hex_digit(encoded.ptr[i + 1]) * 16 + hex_digit(encoded.ptr[i + 2]);
            i += 2;
        }
        if (at >= n || (unsigned char)name[at] != value) {
            return false;
        }
        at++;
    }
    return at == n;
}

void api_model(struct server *s, struct conn *c)
{
    static const struct str prefix = {"/v1/models/", 11};
    struct str path = c->http.request.path;
    struct buf b;

    if (!is_encoded_name((struct str){path.ptr + prefix.len, path.len - prefix.len},
                         s->o.served_name)) {
        char text[ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "this model does not exist here; this server has '%.200s'",
                 s->o.served_name);
        conn_reply_error(
            c, &(struct reply_error){
                   .status = 404, .code = "model_not_found", .param = "model", .message = text});
        return;
    }
    buf_init(&b);
    write_card(&b, s);
    api_reply_json(c, &b);
}

void api_model_info(struct server *s, struct conn *c)
{
    const struct model_config *config = s->model.config;
    const char *path = s->o.model_path ? s->o.model_path : s->o.served_name;
    struct buf b;

    buf_init(&b);
    buf_append_str(&b, "{\"model_path\":");
    json_write_string(&b, path, strlen(path));
    buf_append_str(&b, ",\"tokenizer_path\":");
    json_write_string(&b, path, strlen(path));
    buf_append_str(&b, ",\"is_generation\":true,\"preferred_sampling_params\":null,"
                       "\"weight_version\":\"default\",\"has_image_understanding\":false,"
                       "\"has_audio_understanding\":false,\"model_type\":");
    json_write_string(&b, config ? config->model_type : "",
                      config ? strlen(config->model_type) : 0);
    buf_append_str(&b, ",\"architectures\":[");
    if (config && config->architecture[0]) {
        json_write_string(&b, config->architecture, strlen(config->architecture));
    }
    buf_append_str(&b, "]}");
    api_reply_json(c, &b);
}

/* --- settings ----------------------------------------------------------------------------------- */

static void write_engine_state(struct buf *out, const struct engine_stats *e)
{
    buf_appendf(out,
                "\"internal_states\":[{\"num_running_reqs\":%zu,\"num_waiting_reqs\":%zu,"
                "\"steps\":%llu,\"prompt_tokens\":%llu,\"output_tokens\":%llu,"
                "\"kv_pages_used\":%zu,\"kv_pages_total\":%zu,\"state_slots_used\":%zu,"
                "\"state_snapshots_used\":%zu}]",
                e->n_running, e->n_queued, (unsigned long long)e->steps,
                (unsigned long long)e->prompt_tokens, (unsigned long long)e->output_tokens,
                e->state.pages_used, e->state.pages_total, e->state.live_used,
                e->state.snapshots_used);
}

/* The model has experts that overflow. */
static bool read_offload(const struct server *s, struct offload_stats *out)
{
    return s->model.read_offload && s->model.read_offload(s->model.offload_ctx, out);
}

static void write_offload(struct buf *out, const struct offload_stats *o)
{
    double asked = (double)o->n_hits + (double)o->n_fetched + (double)o->n_cpu;

    buf_appendf(out,
                "\"offload\":{\"layers\":%zu,\"pageable_layers\":%zu,\"experts\":%zu,\"slots\":%zu,"
                "\"staging\":%zu,"
                "\"expert_bytes\":%zu,\"steps\":%llu,\"large_steps\":%llu,\"hits\":%llu,"
                "\"fetched\":%llu,\"in_place\":%llu,\"cpu\":%llu,",
                o->n_layers, o->n_pageable, o->n_layers * o->n_experts, o->n_slots, o->n_staging,
                o->block_bytes, (unsigned long long)o->n_steps,
                (unsigned long long)o->n_large_steps, (unsigned long long)o->n_hits,
                (unsigned long long)o->n_fetched, (unsigned long long)o->n_in_place,
                (unsigned long long)o->n_cpu);
    buf_appendf(out,
                "\"inserted\":%llu,\"prefetched\":%llu,\"prefetched_used\":%llu,\"streamed\":%llu,"
                "\"large_cpu\":%llu,"
                "\"hit_rate\":%.6g,\"fetch_share\":%.6g,\"overlap\":%.6g,"
                "\"link_bytes_per_second\":%.6g,"
                "\"cpu_bytes_per_second\":%.6g},",
                (unsigned long long)o->n_inserted, (unsigned long long)o->n_next,
                (unsigned long long)o->n_next_used, (unsigned long long)o->n_streamed,
                (unsigned long long)o->n_large_cpu, asked > 0 ? (double)o->n_hits / asked : 0,
                o->fetch_share, offload_overlap(o), o->fetch_bytes_per_s, o->cpu_bytes_per_s);
}

void api_server_info(struct server *s, struct conn *c)
{
    struct engine_stats stats = {0};
    struct offload_stats offload;
    struct buf b;

    engine_get_stats(s->model.engine, &stats);
    buf_init(&b);
    buf_append_char(&b, '{');
    if (json_object_is_type(s->model.info, json_type_object)) {
        json_object_object_foreach(s->model.info, key, value)
        {
            json_write_string(&b, key, strlen(key));
            buf_append_char(&b, ':');
            json_write(&b, value);
            buf_append_char(&b, ',');
        }
    }
    buf_appendf(&b,
                "\"version\":\"" SPILLWAY_VERSION "\",\"max_model_len\":%zu,"
                "\"max_req_input_len\":%zu,\"max_running_requests_effective\":%zu,",
                s->model.context_length, s->model.context_length - 1, s->model.max_running);
    if (read_offload(s, &offload)) {
        write_offload(&b, &offload);
    }
    write_engine_state(&b, &stats);
    buf_append_char(&b, '}');
    api_reply_json(c, &b);
}

void api_metrics(struct server *s, struct conn *c)
{
    struct engine_stats stats = {0};
    struct offload_stats offload;
    struct metrics_gauges g = {
        .model_name = s->o.served_name,
        .n_connections = s->n_conns,
        .max_running = s->is_ready ? s->model.max_running : 0,
    };
    struct buf b;

    if (s->is_ready) {
        engine_get_stats(s->model.engine, &stats);
        g.engine = &stats;
        g.offload = read_offload(s, &offload) ? &offload : NULL;
    }
    buf_init(&b);
    metrics_write(&b, &s->metrics, &g);
    conn_reply(c, buf_ok(&b) ? 200 : 503, "text/plain; version=0.0.4; charset=utf-8", buf_cstr(&b),
               b.len);
    buf_release(&b);
}
