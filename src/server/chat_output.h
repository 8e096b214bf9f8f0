/* chat_output.h - generated text as a chat answer: chunks of a stream, or one object.
 *
 * Place: server; the job_api of /v1/chat/completions. Text goes through the thinking splitter, what is
 *        content through the tool scanner, and comes out as pieces (generation.h). A stream writes
 *        them as events, a whole answer collects them; so both say the same. */
#ifndef SERVER_CHAT_OUTPUT_H
#define SERVER_CHAT_OUTPUT_H

#include "server/generation.h"

extern const struct job_api chat_job_api;

/* Prepare the choices of a new job. start: where the answer begins when reasoning is split. */
struct chat_output_options {
    bool splits_reasoning;
    enum reasoning_state start;
    bool parses_tools;
};
enum status chat_output_init(struct job *j, const struct chat_output_options *o, struct error *err);

#endif
