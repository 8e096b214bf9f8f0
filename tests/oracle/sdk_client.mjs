// sdk_client.mjs - what users of the openai and ai packages do, against a server on the demo model.
//
// Place:  run by tests/sdk_test.sh: node sdk_client.mjs PROGRAM MODEL. The packages parse answers by
//         their own rules, so this finds what a client of our own would forgive.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import net from "node:net";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [program, model] = process.argv.slice(2);
const KEY = "secret-of-the-test";
const NAME = "rill";
const CHAT = [{ role: "user", content: "Hi!" }];
const SUM = [{ role: "user", content: "What is 47 + 35?" }];
const WEATHER = [{ role: "user", content: "What is the weather in Paris?" }];
const thinking = (on) => ({ chat_template_kwargs: { enable_thinking: on } });
const weatherSchema = {
  type: "object",
  properties: { city: { type: "string", description: "The name of the city." } },
  required: ["city"],
};
const tools = [{
  type: "function",
  function: { name: "get_weather", description: "Get the weather of a city.", parameters: weatherSchema },
}];

function freePort() {
  return new Promise((resolve) => {
    const s = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = s.address();
      s.close(() => resolve(port));
    });
  });
}

async function startServer() {
  const port = await freePort();
  const child = spawn(program, ["serve", "--model", model, "--port", String(port), "--api-key", KEY,
    "--served-model-name", NAME, "--enable-cache-report", "--log-level", "warning"], { stdio: "inherit" });
  const url = `http://127.0.0.1:${port}`;
  for (let i = 0; i < 1200; i++) {
    if (child.exitCode !== null) throw new Error(`the server ended with code ${child.exitCode}`);
    try {
      if ((await fetch(`${url}/health`)).ok) return { child, url };
    } catch { /* not listening yet */ }
    await new Promise((r) => setTimeout(r, 100));
  }
  child.kill("SIGKILL");
  throw new Error("the server does not become ready");
}

const { child, url } = await startServer();
const openai = new OpenAI({ apiKey: KEY, baseURL: `${url}/v1`, maxRetries: 0 });
const create = (body) => openai.chat.completions.create({ model: NAME, temperature: 0, max_tokens: 120, ...body });

// Joins the chunks of a stream as a client does.
async function join(stream) {
  const out = { content: "", reasoning: "", calls: [], finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    out.chunks++;
    if (chunk.usage) out.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    if (choice.finish_reason) out.finish = choice.finish_reason;
    out.content += choice.delta.content ?? "";
    out.reasoning += choice.delta.reasoning_content ?? "";
    for (const c of choice.delta.tool_calls ?? []) {
      out.calls[c.index] ??= { id: c.id, name: c.function.name, arguments: "" };
      out.calls[c.index].arguments += c.function.arguments ?? "";
    }
  }
  return out;
}

const tests = {
  async "models are listed and found"() {
    const list = await openai.models.list();
    assert.deepEqual(list.data.map((m) => m.id), [NAME]);
    assert.equal((await openai.models.retrieve(NAME)).id, NAME);
    await assert.rejects(openai.models.retrieve("other"), OpenAI.NotFoundError);
  },

  async "chat, whole and streamed"() {
    for (const on of [false, true]) {
      const messages = on ? SUM : CHAT;
      const whole = await create({ messages, ...thinking(on) });
      const { message, finish_reason } = whole.choices[0];
      const streamed = await join(await create({ messages, ...thinking(on), stream: true,
        stream_options: { include_usage: true } }));
      assert.equal(streamed.content, message.content);
      assert.equal(streamed.reasoning, message.reasoning_content ?? "");
      assert.equal(streamed.finish, finish_reason);
      assert.deepEqual(streamed.usage.completion_tokens, whole.usage.completion_tokens);
      assert.ok(message.content.length > 0);
      assert.equal("reasoning_content" in message, on);
      assert.equal(whole.usage.completion_tokens_details.reasoning_tokens > 0, on);
      if (on) assert.match(message.content, /82/);
    }
  },

  async "usage only when asked for"() {
    const streamed = await join(await create({ messages: CHAT, ...thinking(false), stream: true }));
    assert.equal(streamed.usage, null);
  },

  async "a tool call, whole and streamed, and its result"() {
    const whole = await create({ messages: WEATHER, tools, ...thinking(false) });
    const { message, finish_reason } = whole.choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.equal(message.tool_calls[0].function.name, "get_weather");
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Paris" });
    const streamed = await join(await create({ messages: WEATHER, tools, ...thinking(false), stream: true }));
    assert.equal(streamed.finish, "tool_calls");
    assert.equal(streamed.calls.length, message.tool_calls.length);
    assert.equal(streamed.calls[0].name, "get_weather");
    assert.match(streamed.calls[0].id, /^call_[0-9a-f]{24}$/);
    assert.equal(streamed.calls[0].arguments, message.tool_calls[0].function.arguments);
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"weather": "sunny", "degrees": 21}' };
    const answer = await create({ messages: [...WEATHER, message, result], tools, ...thinking(false) });
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.ok(answer.choices[0].message.content.length > 0);
  },

  async "completions"() {
    const body = { model: NAME, prompt: "Once upon a time", temperature: 0, max_tokens: 20 };
    const whole = await openai.completions.create(body);
    let text = "";
    for await (const chunk of await openai.completions.create({ ...body, stream: true })) {
      text += chunk.choices[0]?.text ?? "";
    }
    assert.equal(text, whole.choices[0].text);
    assert.equal(whole.choices[0].finish_reason, "length");
    assert.equal(whole.usage.completion_tokens, 20);
  },

  async "log-probabilities"() {
    const answer = await create({ messages: CHAT, ...thinking(false), logprobs: true, top_logprobs: 3 });
    const { content } = answer.choices[0].logprobs;
    assert.ok(content.length > 3);
    for (const t of content) {
      assert.ok(t.logprob <= 0 && t.top_logprobs.length === 3);
      assert.equal(t.top_logprobs[0].token, t.token); // greedy
    }
  },

  async "errors are the package's own classes"() {
    await assert.rejects(create({ messages: CHAT, temperature: -1 }), (e) =>
      e instanceof OpenAI.BadRequestError && e.param === "temperature" && /temperature/.test(e.message));
    await assert.rejects(create({ messages: [] }), (e) => e.status === 400 && e.param === "messages");
    await assert.rejects(create({ messages: CHAT, max_tokens: 1e6 }), (e) => e.code === "context_length_exceeded");
    await assert.rejects(create({ messages: CHAT, stream: true, tool_choice: "required", tools }), OpenAI.BadRequestError);
    const other = new OpenAI({ apiKey: "wrong", baseURL: `${url}/v1`, maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
  },

  async "an aborted stream frees its place"() {
    const stream = await create({ messages: [{ role: "user", content: "Tell me a story about a fox." }],
      ...thinking(false), max_tokens: 4000, ignore_eos: true, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break; // leaving the loop closes the connection
    }
    stream.controller.abort();
    for (let i = 0; ; i++) {
      const text = await (await fetch(`${url}/metrics`, { headers: { "x-api-key": KEY } })).text();
      if (/^spillway_num_requests_running\{[^}]*\} 0$/m.test(text)) break;
      assert.ok(i < 300, "the sequence still runs");
      await new Promise((r) => setTimeout(r, 100));
    }
  },

  async "eight at once say what each says alone"() {
    const questions = ["Hi!", "What is the capital of France?", "Tell me a story about a rabbit.", "Thank you!",
      "What is 12 + 9?", "Who are you?", "Spell the word water.", "Good night!"]
      .map((content) => ({ messages: [{ role: "user", content }], max_tokens: 60, ...thinking(false) }));
    const alone = [];
    for (const q of questions) alone.push((await create(q)).choices[0].message.content);
    const together = await Promise.all(questions.map(async (q, i) =>
      (i % 2 ? (await create(q)).choices[0].message.content : (await join(await create({ ...q, stream: true }))).content)));
    assert.deepEqual(together, alone);
  },

  async "the ai package: text, stream, thinking, tools, errors"() {
    const provider = createOpenAICompatible({ name: "spillway", apiKey: KEY, baseURL: `${url}/v1`,
      includeUsage: true, transformRequestBody: (b) => ({ ...b, ...thinking(b.user === "think") }) });
    const ai = provider(NAME);
    const settings = { model: ai, temperature: 0, maxOutputTokens: 120, maxRetries: 0 };
    const whole = await generateText({ ...settings, prompt: "Hi!" });
    assert.ok(whole.text.length > 0);
    assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
    const streamed = streamText({ ...settings, prompt: "Hi!" });
    let text = "";
    for await (const piece of streamed.textStream) text += piece;
    assert.equal(text, whole.text);
    assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);

    const thought = await generateText({ ...settings, prompt: SUM[0].content, providerOptions: { spillway: { user: "think" } } });
    assert.ok(thought.reasoningText.length > 0);
    assert.match(thought.text, /82/);

    const get_weather = tool({ description: "Get the weather of a city.", inputSchema: jsonSchema(weatherSchema) });
    const called = await generateText({ ...settings, prompt: WEATHER[0].content, tools: { get_weather } });
    assert.equal(called.finishReason, "tool-calls");
    assert.deepEqual(called.toolCalls.map((c) => [c.toolName, c.input]), [["get_weather", { city: "Paris" }]]);
    const calls = [];
    for await (const part of streamText({ ...settings, prompt: WEATHER[0].content, tools: { get_weather } }).fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "tool-call") calls.push([part.toolName, part.input]);
    }
    assert.deepEqual(calls, [["get_weather", { city: "Paris" }]]);
    await assert.rejects(generateText({ ...settings, temperature: -1, prompt: "Hi!" }), /temperature/);
  },
};

let failed = 0;
try {
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      console.log(`ok   ${name}`);
    } catch (error) {
      failed++;
      console.log(`FAIL ${name}\n${error.stack}`);
    }
  }
} finally {
  const ended = new Promise((resolve) => child.on("exit", (code) => resolve(code)));
  child.kill("SIGTERM");
  const code = await ended;
  if (code !== 0) {
    failed++;
    console.log(`FAIL the server ended with code ${code}`);
  }
}
console.log(failed ? `${failed} failed` : `all ${Object.keys(tests).length} passed`);
process.exit(failed ? 1 : 0);
