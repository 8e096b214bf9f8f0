/* params_special.h - the request fields that need more than a type and a range.
 *
 * Place: server; the table in params.c points here, nobody else calls these. v is never null. */
#ifndef SERVER_PARAMS_SPECIAL_H
#define SERVER_PARAMS_SPECIAL_H

#include "server/params.h"

typedef enum status params_field_fn(struct params *p, struct json_object *v,
                                    const struct params_context *ctx, struct error *err);

params_field_fn params_messages, params_prompt, params_model, params_rid, params_tools,
    params_tool_choice, params_template_kwargs, params_reasoning_effort, params_reasoning,
    params_stop, params_stop_token_ids, params_top_k, params_logit_bias, params_seed,
    params_best_of, params_stream_options, params_logprobs_count, params_response_format,
    params_modalities;

/* After all fields: the server's default kwargs where the request says nothing. */
enum status params_finish_kwargs(struct params *p, const struct params_context *ctx,
                                 struct error *err);

#endif
