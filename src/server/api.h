/* api.h - the handlers behind the routes.
 *
 * Place: server. Each one answers (conn_reply..., conn_stream...) or attaches a job. The model is
 *        there for all that route.c marks as needing it. */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "base/json.h"
#include "server/conn.h"
#include "server/server_state.h"

typedef void api_handler(struct server *s, struct conn *c);

/* api_chat.c, api_completions.c */
api_handler api_chat_completions, api_completions;
/* api_models.c */
api_handler api_models, api_model, api_health, api_ready, api_ping, api_server_info, api_model_info,
    api_metrics;
/* api_tokenize.c */
api_handler api_tokenize, api_detokenize;

/* Parse the request's body; on failure the answer is sent and NULL returned. */
struct json_object *api_read_body(struct conn *c);

/* params_parse with the server's defaults; unknown fields are noted in the log. */
enum status api_read_params(struct params *out, struct server *s, enum api api,
                            struct json_object *body, struct error *err);

/* With --strict-model-name an unknown name is a 404. False: the answer is sent. */
bool api_check_model(struct server *s, struct conn *c, const char *model);

/* Send a JSON answer of 200 from b, and release it. */
void api_reply_json(struct conn *c, struct buf *b);

/* Append ids as tokens of a prompt. ids: a JSON list; ERR_BAD_REQUEST names param. */
enum status api_read_ids(struct token_ids *out, struct json_object *ids, size_t vocab_size,
                         const char *param, struct error *err);

#endif
