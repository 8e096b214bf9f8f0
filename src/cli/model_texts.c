/* model_texts.c - see model_texts.h. tokenizer.json is model_tokenizer.c.
 *
 * The configuration is written as text, in the order and the nesting of the published files, because
 * that is what a reader of it compares it with. */
#include "cli/model_texts.h"

#include <inttypes.h>

/* ---- the text model's fields ---- */

enum { NEXT_INTERMEDIATE = 5120 /* in its files, though every layer has experts */ };

static bool is_next(const struct model_shape *s)
{
    return s->family == FAMILY_QWEN3_NEXT;
}

static bool is_moe(const struct model_shape *s)
{
    return s->n_experts > 0;
}

static void field(struct buf *out, const char *indent, const char *key, size_t value)
{
    buf_appendf(out, "%s\"%s\": %zu,\n", indent, key, value);
}

static void write_mlp(struct buf *out, const struct model_shape *s, const char *indent)
{
    if (!is_moe(s)) {
        field(out, indent, "intermediate_size", s->intermediate);
        return;
    }
    field(out, indent, "moe_intermediate_size", s->expert_width);
    field(out, indent, "shared_expert_intermediate_size", s->shared_width);
    field(out, indent, "num_experts", s->n_experts);
    field(out, indent, "num_experts_per_tok", s->n_active);
    buf_appendf(out, "%s\"router_aux_loss_coef\": 0.001,\n%s\"output_router_logits\": false,\n",
                indent, indent);
    if (is_next(s)) {
        field(out, indent, "intermediate_size", NEXT_INTERMEDIATE);
        buf_appendf(out,
                    "%s\"decoder_sparse_step\": 1,\n%s\"mlp_only_layers\": [],\n"
                    "%s\"norm_topk_prob\": true,\n",
                    indent, indent, indent);
    }
}

static void write_attention(struct buf *out, const struct model_shape *s, const char *indent)
{
    buf_appendf(out, "%s\"attention_bias\": false,\n%s\"attention_dropout\": 0.0,\n", indent,
                indent);
    field(out, indent, "num_attention_heads", s->n_heads);
    field(out, indent, "num_key_value_heads", s->n_kv_heads);
    field(out, indent, "head_dim", SHAPE_HEAD_DIM);
    field(out, indent, "full_attention_interval", SHAPE_FULL_INTERVAL);
    field(out, indent, "linear_conv_kernel_dim", SHAPE_CONV_TAPS);
    field(out, indent, "linear_key_head_dim", SHAPE_LINEAR_DIM);
    field(out, indent, "linear_value_head_dim", SHAPE_LINEAR_DIM);
    field(out, indent, "linear_num_key_heads", SHAPE_KEY_HEADS);
    field(out, indent, "linear_num_value_heads", s->n_value_heads);
}

static void write_layer_types(struct buf *out, const struct model_shape *s, const char *indent)
{
    buf_appendf(out, "%s\"layer_types\": [", indent);
    for (size_t i = 0; i < s->n_layers; i++) {
        buf_appendf(out, "%s\n%s  \"%s_attention\"", i ? "," : "", indent,
                    (i + 1) % SHAPE_FULL_INTERVAL == 0 ? "full" : "linear");
    }
    buf_appendf(out, "\n%s],\n", indent);
}

/* Only what the two families have in common. */
static void write_common(struct buf *out, const struct model_shape *s, const char *indent)
{
    write_attention(out, s, indent);
    write_mlp(out, s, indent);
    field(out, indent, "hidden_size", s->hidden);
    field(out, indent, "num_hidden_layers", s->n_layers);
    field(out, indent, "vocab_size", s->vocab);
    field(out, indent, "max_position_embeddings", SHAPE_POSITIONS);
    buf_appendf(out,
                "%s\"dtype\": \"bfloat16\",\n%s\"hidden_act\": \"silu\",\n"
                "%s\"initializer_range\": 0.02,\n%s\"rms_norm_eps\": 1e-06,\n%s\"use_cache\": "
                "true,\n%s\"tie_word_embeddings\": %s,\n",
                indent, indent, indent, indent, indent, indent, s->is_tied ? "true" : "false");
}

static void write_text_config(struct buf *out, const struct model_text_input *in)
{
    static const char indent[] = "    ";
    const struct model_shape *s = in->shape;

    buf_append_str(out, "  \"text_config\": {\n");
    write_common(out, s, indent);
    write_layer_types(out, s, indent);
    field(out, indent, "eos_token_id", model_token_id(s, MADE_ENDOFTEXT));
    /* What the files hold, not what the published model has: without its tensors, no draft head. */
    field(out, indent, "mtp_num_hidden_layers", in->variant->with_mtp ? 1 : 0);
    buf_appendf(out,
                "    \"attn_output_gate\": true,\n"
                "    \"mamba_ssm_dtype\": \"float32\",\n"
                "    \"mtp_use_dedicated_embeddings\": false,\n"
                "    \"pad_token_id\": null,\n"
                "    \"rope_parameters\": {\n"
                "      \"mrope_interleaved\": true,\n"
                "      \"mrope_section\": [11, 11, 10],\n"
                "      \"partial_rotary_factor\": 0.25,\n"
                "      \"rope_theta\": 10000000,\n"
                "      \"rope_type\": \"default\"\n"
                "    },\n"
                "    \"model_type\": \"%s_text\"\n  },\n",
                model_family_name(s->family));
}

/* ---- the rest of config.json ---- */

static void write_vision_config(struct buf *out, const struct model_shape *s)
{
    static const char indent[] = "    ";
    const struct vision_shape *v = &s->vision;

    buf_append_str(out, "  \"vision_config\": {\n");
    field(out, indent, "depth", v->depth);
    field(out, indent, "hidden_size", v->hidden);
    field(out, indent, "intermediate_size", v->intermediate);
    field(out, indent, "num_heads", v->n_heads);
    field(out, indent, "out_hidden_size", s->hidden);
    field(out, indent, "in_channels", SHAPE_COLOURS);
    field(out, indent, "num_position_embeddings", SHAPE_VISION_POSITIONS);
    field(out, indent, "patch_size", SHAPE_PATCH);
    field(out, indent, "temporal_patch_size", SHAPE_PATCH_FRAMES);
    buf_appendf(out,
                "    \"spatial_merge_size\": 2,\n"
                "    \"deepstack_visual_indexes\": [],\n"
                "    \"hidden_act\": \"gelu_pytorch_tanh\",\n"
                "    \"initializer_range\": 0.02,\n"
                "    \"model_type\": \"%s\"\n  },\n",
                model_family_name(s->family));
}

/* The rules of the published files, of which the first two do nothing. */
static void write_quantization(struct buf *out, const struct model_shape *s)
{
    buf_appendf(out,
                "  \"quantization_config\": {\n"
                "    \"bits\": 4,\n"
                "    \"checkpoint_format\": \"gptq\",\n"
                "    \"desc_act\": false,\n"
                "    \"dynamic\": {\n"
                "      \"lm_head\": {},\n"
                "      \"%sembed_tokens\": {},\n"
                "      \"-:.*attn.*\": {},\n"
                "      \"-:.*shared_expert.*\": {},\n"
                "      \"-:.*mtp.*\": {},\n"
                "      \"-:.*visual.*\": {}\n"
                "    },\n"
                "    \"group_size\": %d,\n"
                "    \"lm_head\": false,\n"
                "    \"quant_method\": \"gptq\",\n"
                "    \"sym\": true\n  },\n",
                is_next(s) ? "model." : "model.language_model.", SHAPE_GROUP);
}

/* A name that tells these files from the published ones. */
static void write_origin(struct buf *out, const struct model_text_input *in)
{
    buf_appendf(out, "  \"_name_or_path\": \"%s (random weights, seed %" PRIu64 ")\",\n",
                in->shape->name, in->seed);
}

static void write_nested(struct buf *out, const struct model_text_input *in)
{
    const struct model_shape *s = in->shape;

    buf_appendf(out, "  \"architectures\": [\"%s\"],\n",
                is_moe(s) ? "Qwen3_5MoeForConditionalGeneration"
                          : "Qwen3_5ForConditionalGeneration");
    field(out, "  ", "image_token_id", model_token_id(s, MADE_IMAGE_PAD));
    field(out, "  ", "video_token_id", model_token_id(s, MADE_VIDEO_PAD));
    field(out, "  ", "vision_start_token_id", model_token_id(s, MADE_VISION_START));
    field(out, "  ", "vision_end_token_id", model_token_id(s, MADE_VISION_END));
    write_text_config(out, in);
    write_vision_config(out, s);
    buf_appendf(out, "  \"tie_word_embeddings\": %s,\n", s->is_tied ? "true" : "false");
}

static void write_flat(struct buf *out, const struct model_text_input *in)
{
    const struct model_shape *s = in->shape;

    buf_append_str(out, "  \"architectures\": [\"Qwen3NextForCausalLM\"],\n");
    write_common(out, s, "  ");
    field(out, "  ", "bos_token_id", model_token_id(s, MADE_ENDOFTEXT));
    field(out, "  ", "eos_token_id", model_token_id(s, MADE_IM_END));
    buf_append_str(out, "  \"partial_rotary_factor\": 0.25,\n"
                        "  \"rope_scaling\": null,\n"
                        "  \"rope_theta\": 10000000,\n"
                        "  \"use_sliding_window\": false,\n");
}

static void write_config(struct buf *out, const struct model_text_input *in)
{
    const struct model_shape *s = in->shape;

    buf_append_str(out, "{\n");
    write_origin(out, in);
    if (is_next(s)) {
        write_flat(out, in);
    } else {
        write_nested(out, in);
    }
    if (in->variant->is_int4) {
        write_quantization(out, s);
    }
    buf_appendf(out, "  \"model_type\": \"%s\"\n}\n", model_family_name(s->family));
}

/* ---- the other files ---- */

static void write_generation_config(struct buf *out, const struct model_text_input *in)
{
    size_t end_of_text = model_token_id(in->shape, MADE_ENDOFTEXT);

    buf_appendf(out,
                "{\n  \"bos_token_id\": %zu,\n  \"do_sample\": true,\n  \"eos_token_id\": [\n"
                "    %zu,\n    %zu\n  ],\n  \"pad_token_id\": %zu,\n  \"temperature\": 0.6,\n"
                "  \"top_k\": 20,\n  \"top_p\": 0.95\n}\n",
                end_of_text, model_token_id(in->shape, MADE_IM_END), end_of_text, end_of_text);
}

static void write_tokenizer_config(struct buf *out, const struct model_text_input *in)
{
    (void)in;
    buf_appendf(out,
                "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                "  \"bos_token\": null,\n  \"clean_up_tokenization_spaces\": false,\n"
                "  \"eos_token\": \"<|im_end|>\",\n  \"errors\": \"replace\",\n"
                "  \"model_max_length\": %d,\n  \"pad_token\": \"<|endoftext|>\",\n"
                "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n",
                SHAPE_POSITIONS);
}

/* The family's turns: system with tools, thinking, tool calls and results. Text only. */
static const char chat_template[] =
    "{%- macro text_of(content) -%}\n"
    "    {%- if content is string -%}{{ content }}\n"
    "    {%- elif content is none or content is undefined -%}\n"
    "    {%- else -%}{%- for part in content -%}{%- if part.type == 'text' -%}{{ part.text }}"
    "{%- else -%}{{ raise_exception('This model reads text only') }}{%- endif -%}{%- endfor -%}\n"
    "    {%- endif -%}\n"
    "{%- endmacro -%}\n"
    "{%- if not messages -%}{{ raise_exception('No messages') }}{%- endif -%}\n"
    "{%- set ns = namespace(last=-1) -%}\n"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}"
    "{%- endif -%}{%- endfor -%}\n"
    "{%- set system = text_of(messages[0].content) if messages[0].role == 'system' else '' -%}\n"
    "{%- if tools -%}\n"
    "    {{- '<|im_start|>system\\n# Tools\\n\\nThese functions can be called:\\n\\n<tools>' -}}\n"
    "    {%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}\n"
    "    {{- '\\n</tools>\\n\\nA call has this form, and nothing follows it:\\n\\n<tool_call>\\n"
    "<function=NAME>\\n<parameter=ARG>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>' -}}\n"
    "    {%- if system -%}{{ '\\n\\n' + system }}{%- endif -%}\n"
    "    {{- '<|im_end|>\\n' -}}\n"
    "{%- elif system -%}\n"
    "    {{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for m in messages -%}\n"
    "    {%- set body = text_of(m.content) -%}\n"
    "    {%- if m.role == 'system' -%}\n"
    "        {%- if not loop.first -%}{{ raise_exception('The system message must come first') }}"
    "{%- endif -%}\n"
    "    {%- elif m.role == 'user' -%}\n"
    "        {{- '<|im_start|>user\\n' + body + '<|im_end|>\\n' -}}\n"
    "    {%- elif m.role == 'assistant' -%}\n"
    "        {%- set think = '' -%}\n"
    "        {%- if m.reasoning_content is string -%}{%- set think = m.reasoning_content -%}\n"
    "        {%- elif '</think>' in body -%}\n"
    "            {%- set think = body.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}\n"
    "            {%- set body = body.split('</think>')[-1].lstrip('\\n') -%}\n"
    "        {%- endif -%}\n"
    "        {{- '<|im_start|>assistant\\n' -}}\n"
    "        {%- if loop.index0 > ns.last -%}{{ '<think>\\n' + think + '\\n</think>\\n\\n' }}"
    "{%- endif -%}\n"
    "        {{- body -}}\n"
    "        {%- for call in m.tool_calls or [] -%}\n"
    "            {%- set f = call.function if call.function is defined else call -%}\n"
    "            {{- ('\\n\\n' if loop.first and body else '' if loop.first else '\\n')"
    " + '<tool_call>\\n<function=' + f.name + '>\\n' -}}\n"
    "            {%- for key, value in f.arguments.items() -%}\n"
    "                {{- '<parameter=' + key + '>\\n'"
    " + (value if value is string else value | tojson) + '\\n</parameter>\\n' -}}\n"
    "            {%- endfor -%}\n"
    "            {{- '</function>\\n</tool_call>' -}}\n"
    "        {%- endfor -%}\n"
    "        {{- '<|im_end|>\\n' -}}\n"
    "    {%- elif m.role == 'tool' -%}\n"
    "        {%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}"
    "{%- endif -%}\n"
    "        {{- '\\n<tool_response>\\n' + body + '\\n</tool_response>' -}}\n"
    "        {%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}"
    "{%- endif -%}\n"
    "    {%- else -%}{{ raise_exception('Unknown role ' + m.role) }}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "    {{- '<|im_start|>assistant\\n<think>\\n' -}}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{ '\\n</think>\\n\\n' }}{%- endif -%}\n"
    "{%- endif -%}\n";

static void write_chat_template(struct buf *out, const struct model_text_input *in)
{
    (void)in;
    buf_append(out, chat_template, sizeof chat_template - 1);
}

const struct model_text model_texts[] = {
    {"tokenizer.json", model_tokenizer_write},
    {"tokenizer_config.json", write_tokenizer_config},
    {"chat_template.jinja", write_chat_template},
    {"generation_config.json", write_generation_config},
    {"config.json", write_config},
};
const size_t model_texts_count = sizeof model_texts / sizeof model_texts[0];
