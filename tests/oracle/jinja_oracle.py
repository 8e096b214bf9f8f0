#!/usr/bin/python3
"""Compare `spillway render --batch` with Python's Jinja2, set up as transformers sets it up.

    SPILLWAY=build/spillway /usr/bin/python3 tests/oracle/jinja_oracle.py

Three parts: the small cases of tests/jinja/*.cases, the chat templates of tests/jinja/chat over its
conversations, and the demo model's template over conversations that tools/demo-model/corpus.py makes.
Exit 0: no difference; 1: differences (the first ones are printed); 77: no Jinja2 here.
"""

import copy
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import time

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("skipped: this Python has no jinja2 (Debian: python3-jinja2)")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NOW = 1767225599  # 2025-12-31 23:59:59 UTC
RILL_CONVERSATIONS = 600
SHOWN_MAX = 10

os.environ["TZ"] = "UTC"
time.tzset()


class Generation(jinja2.ext.Extension):
    """{% generation %}: the body is called and printed where it stands."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format):
    return datetime.datetime.fromtimestamp(NOW).strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()
COMPILED = {}


def reference(template, context):
    """("text", rendered) or ("error", what)"""
    try:
        if template not in COMPILED:
            COMPILED.clear()
            COMPILED[template] = ENV.from_string(template)
        text = COMPILED[template].render(**copy.deepcopy(context))
        text.encode("utf-8")
        return "text", text
    except Exception as e:
        return "error", f"{type(e).__name__}: {e}"


def ours(jobs):
    """The same for a list of (template, context)."""
    lines = "".join(json.dumps({"template": t, "context": c}) + "\n" for t, c in jobs)
    run = subprocess.run([os.environ["SPILLWAY"], "render", "--batch", "-", "--time", str(NOW)],
                         input=lines.encode(), stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in run.stdout.decode().splitlines()]
    if len(answers) != len(jobs):
        sys.exit(f"{len(answers)} answers to {len(jobs)} lines")
    return [("text", a["text"]) if "text" in a else ("error", f'{a["code"]}: {a["error"]}') for a in answers]


def read_cases(path):
    """Yield (title, template, context, expectation) of a .cases file."""
    context, title, mode, lines = {}, "", "", []

    def flush():
        if mode in ("case", "refused"):
            yield title, "\n".join(lines), context, mode
        elif mode == "crlf":
            yield title, "\r\n".join(lines), context, "case"

    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file.read().split("\n"):
            if line.startswith("@") and not line.startswith("@@"):
                yield from flush()
                mode, _, title = line[1:].partition(" ")
                lines = []
                if mode == "context":
                    context = json.loads(title)
            elif mode == "lines":
                if line:
                    yield title, line, context, "case"
            else:
                lines.append(line[1:] if line.startswith("@@") else line)
    if lines and lines[-1] == "":
        lines.pop()
    yield from flush()


class Tally:
    def __init__(self, name):
        self.name, self.total, self.raised, self.differences = name, 0, 0, 0

    def compare(self, label, expected, got, refused=False):
        self.total += 1
        self.raised += expected[0] == "error"
        if refused:
            good = expected[0] == "text" and got[0] == "error"
        else:
            good = expected == got if expected[0] == "text" else got[0] == "error"
        if good:
            return
        self.differences += 1
        if self.differences <= SHOWN_MAX:
            same = len(os.path.commonprefix([expected[1], got[1]]))
            begin = max(0, same - 40)
            print(f"DIFFERENT {label[:300]}\n  python: {expected[0]} ...{expected[1][begin:same + 160]!r}"
                  f"\n  ours:   {got[0]} ...{got[1][begin:same + 160]!r}")

    def close(self):
        print(f"{self.name}: {self.total} renderings ({self.raised} of them errors on both sides), "
              f"{self.differences} differences")
        return self.differences


def small_cases():
    tally = Tally("cases")
    cases = []
    for path in sorted(glob.glob(f"{ROOT}/tests/jinja/*.cases")):
        cases += [(os.path.basename(path), *case) for case in read_cases(path)]
    answers = ours([(template, context) for _, _, template, context, _ in cases])
    for (file, title, template, context, mode), got in zip(cases, answers):
        label = f"{file} [{title}] {template!r}"
        tally.compare(label, reference(template, context), got, mode == "refused")
    return tally.close()


def chat_templates():
    tally = Tally("chat templates")
    with open(f"{ROOT}/tests/jinja/chat/conversations.json", encoding="utf-8") as file:
        conversations = json.load(file)
    paths = sorted(glob.glob(f"{ROOT}/tests/jinja/chat/*.jinja")) + [f"{ROOT}/models/rill/chat_template.jinja"]
    jobs = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            template = file.read()
        for number, conversation in enumerate(conversations):
            for generate in (False, True):
                context = {"messages": conversation["messages"], "tools": conversation.get("tools"),
                           "documents": None, "add_generation_prompt": generate,
                           "bos_token": "<s>", "eos_token": "</s>", **conversation.get("kwargs", {})}
                jobs.append((f"{os.path.basename(path)} conversation {number}", template, context))
    answers = ours([(template, context) for _, template, context in jobs])
    rendered = {}
    for (label, template, context), got in zip(jobs, answers):
        expected = reference(template, context)
        rendered[label.split()[0]] = rendered.get(label.split()[0], 0) + (expected[0] == "text")
        tally.compare(label, expected, got)
    for name, count in rendered.items():
        if count * 3 < len(conversations):
            print(f"note: {name} renders only {count} of {2 * len(conversations)}")
    return tally.close()


def rill_conversations():
    """Conversations of every kind, questions and whole ones, with and without tools and thinking."""
    sys.path.insert(0, f"{ROOT}/tools/demo-model")
    sys.dont_write_bytecode = True
    import corpus

    rng = random.Random("oracle")
    kinds = list(corpus.KINDS)
    for number in range(RILL_CONVERSATIONS):
        sample = corpus.KINDS[kinds[number % len(kinds)]].build(rng)
        messages = sample.messages[:-1] if number % 3 == 0 else sample.messages
        for message in messages:
            for call in message.get("tool_calls") or []:
                if isinstance(call["function"]["arguments"], str):
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        yield corpus, messages, list(sample.tools), number % 4 != 1, number % 3 == 0


def rill():
    tally, by_generator = Tally("demo model"), Tally("demo model, as the generator writes it")
    with open(f"{ROOT}/models/rill/chat_template.jinja", encoding="utf-8") as file:
        template = file.read()
    jobs, texts = [], []
    for corpus, messages, tools, thinking, generate in rill_conversations():
        context = {"messages": messages, "tools": tools or None, "add_generation_prompt": generate}
        if not thinking:
            context["enable_thinking"] = False
        jobs.append((template, context))
        texts.append(corpus.render(messages, tools, True, generate) if thinking else None)
    for number, (job, text, got) in enumerate(zip(jobs, texts, ours(jobs))):
        tally.compare(f"conversation {number}", reference(*job), got)
        if text is not None:
            by_generator.compare(f"conversation {number}", ("text", text), got)
    return tally.close() + by_generator.close()


if __name__ == "__main__":
    sys.exit(1 if small_cases() + chat_templates() + rill() else 0)
