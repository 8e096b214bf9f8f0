#!/usr/bin/env python3
"""api_client.py - the API on scripted models (puppet.py): caps, stop strings, tags, calls, bytes, life.

Place:  tests; run by api_test.sh with the program's path. Python 3 standard library only. What each
        endpoint does with any script is tested in src/server/server_api_test.c; here the same holds with
        the real engine, sampler and detokeniser in between.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
START_S = 120


class Server:
    """A server on a scripted model, for one `with`."""

    def __init__(self, program, script, *flags):
        self.dir = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, os.path.join(HERE, "puppet.py"), "--out", self.dir.name, *script],
                       check=True, stdout=subprocess.DEVNULL)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [program, "serve", "--model", self.dir.name, "--port", str(self.port),
                        "--served-model-name", "puppet", "--log-level", "error", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self.command)
        until = time.monotonic() + START_S
        while self.get("/health") != 200:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            assert time.monotonic() < until, "the server does not become ready"
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.dir.cleanup()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            c.request("GET", path)
            return c.getresponse().status
        except OSError:
            return 0
        finally:
            c.close()

    def post(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        text = answer.read().decode()  # events must be valid UTF-8
        c.close()
        return answer.status, text

    def ask(self, path, body):
        """The answer as one dict, whole and streamed; both must agree."""
        status, text = self.post(path, body)
        assert status == 200, text
        whole = from_object(json.loads(text))
        status, text = self.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert status == 200, text
        streamed = from_events(text)
        assert streamed == whole, f"\nstream {streamed}\nwhole  {whole}"
        return whole

    def chat(self, **members):
        return self.ask("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, **members})

    def complete(self, **members):
        return self.ask("/v1/completions", {"temperature": 0, **members})


def empty():
    return {"content": "", "reasoning": "", "calls": [], "finish": None, "matched": None, "tokens": 0}


def add(out, part, choice):
    out["content"] += part.get("content") or part.get("text") or ""
    out["reasoning"] += part.get("reasoning_content") or ""
    for call in part.get("tool_calls") or []:
        if call["index"] == len(out["calls"]):
            assert call["id"].startswith("call_") and call["type"] == "function"
            out["calls"].append([call["function"]["name"], ""])
        else:
            assert "id" not in call
        out["calls"][call["index"]][1] += call["function"]["arguments"]
    if choice["finish_reason"]:
        out["finish"], out["matched"] = choice["finish_reason"], choice["matched_stop"]


def finish(out):
    out["calls"] = [(name, json.loads(arguments)) for name, arguments in out["calls"]]
    return out


def from_object(o):
    out = empty()
    choice = o["choices"][0]
    add(out, choice.get("message", choice), choice)
    out["tokens"] = o["usage"]["completion_tokens"]
    return finish(out)


def from_events(text):
    out = empty()
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], events[-2:]
    for event in events[:-2]:
        o = json.loads(event.removeprefix("data: "))
        if o["choices"]:
            choice = o["choices"][0]
            add(out, choice.get("delta", choice), choice)
        else:
            out["tokens"] = o["usage"]["completion_tokens"]
    return finish(out)


def expect(got, **wanted):
    for key, value in wanted.items():
        assert got[key] == value, f"{key}: {got[key]!r}, not {value!r}"


def test_thinking(program):
    script = ["--prompt-tail", "<think>\\n", "--answer", "I see.\\n</think>\\n\\nGood day!",
              "--prompt-tail", "</think>\\n\\n", "--answer", "HELLO"]
    with Server(program, script) as s:
        expect(s.chat(**OFF), content="HELLO", reasoning="", finish="stop")
        for members in ({}, {"chat_template_kwargs": {"enable_thinking": True}}):
            got = s.chat(**members)
            expect(got, content="Good day!", reasoning="I see.")
        expect(s.chat(separate_reasoning=False), content="I see.\n</think>\n\nGood day!", reasoning="")
    with Server(program, script, "--reasoning-parser", "none") as s:
        expect(s.chat(), content="I see.\n</think>\n\nGood day!", reasoning="")
    with Server(program, script, "--chat-template-kwargs", '{"enable_thinking": false}') as s:
        expect(s.chat(), content="HELLO", reasoning="")


def test_caps(program):
    script = ["--prompt-tail", "</think>\\n\\n", "--exact", "--answer", "ab", "cd", "ef", "--cycle"]
    with Server(program, script, "--context-length", "256") as s:
        for cap in (1, 2, 7):
            text = ("abcdef" * 3)[:2 * cap]
            for members in ({"max_tokens": cap}, {"max_completion_tokens": cap},
                            {"max_completion_tokens": cap, "max_tokens": 99}):
                expect(s.chat(**OFF, **members), content=text, finish="length", tokens=cap)
            expect(s.complete(prompt="</think>\n\n", max_tokens=cap), content=text, finish="length",
                   tokens=cap)
        for bad in (0, -1):
            for path, field in (("/v1/chat/completions", "max_completion_tokens"),
                                ("/v1/completions", "max_tokens")):
                status, text = s.post(path, {"prompt": "x", "messages": [{"role": "user", "content": "x"}],
                                             field: bad})
                assert status == 400 and json.loads(text)["error"]["param"] == field, text
        got = s.chat(**OFF)  # no cap: to the end of the context, then as if nothing had been
        expect(got, finish="length")
        assert got["tokens"] < 256
        expect(s.chat(**OFF, max_tokens=2), content="abcd")


def test_stop_strings(program):
    text = "xDEFGHIJy"
    cuts = [["x", "DE", "FG", "HIJ", "y"], ["xD", "EFGHI", "Jy"], list("xDEFGHIJy"), ["xDEFGHIJ", "y"]]
    for pieces in cuts:
        script = ["--prompt-tail", "</think>\\n\\n", "--exact", "--answer", *pieces]
        with Server(program, script) as s:
            expect(s.chat(**OFF), content=text, finish="stop")
            for stop in ("DEF", "FG", "HIJ", "EFGHIJ", "y", text):
                expect(s.chat(**OFF, stop=stop), content=text[:text.index(stop)], finish="stop", matched=stop)
                expect(s.chat(**OFF, stop=[stop], no_stop_trim=True),
                       content=text[:text.index(stop) + len(stop)])
            expect(s.chat(**OFF, stop=["GHIJ", "FG"]), content="xDE", matched="FG")  # the earliest
            expect(s.chat(**OFF, stop=["HIJz", "DEFx"]), content=text)  # only began


def test_tool_calls(program):
    call = "<tool_call>\\n<function=get_weather>\\n{}</function>\\n</tool_call>"
    one = "<parameter=city>\\nParis\\n</parameter>\\n"
    three = one + "<parameter=days>\\n3\\n</parameter>\\n<parameter=metric>\\nTrue\\n</parameter>\\n"
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                                         "metric": {"type": "boolean"}}}}}
    cases = [(call.format(""), [{}]), (call.format(one), [{"city": "Paris"}]),
             (call.format(three), [{"city": "Paris", "days": 3, "metric": True}]),
             (call.format(one) + "\\n" + call.format(three),
              [{"city": "Paris"}, {"city": "Paris", "days": 3, "metric": True}])]
    for answer, wanted in cases:
        with Server(program, ["--prompt-tail", "</think>\\n\\n", "--answer", answer]) as s:
            expect(s.chat(**OFF, tools=[tool]), calls=[("get_weather", a) for a in wanted], content="",
                   finish="tool_calls")
            got = s.chat(**OFF)  # without tools it is text
            expect(got, calls=[], finish="stop")
            assert got["content"].startswith("<tool_call>")


def test_bytes(program):
    emoji, cut = "🙂é漢", b"\xf0\x9f"
    pieces = [f"\\x{b:02x}" for b in emoji.encode() + cut]
    script = ["--prompt-tail", "</think>\\n\\n", "--exact", "--answer"]
    seen, joined = set(), []
    for p in pieces:  # one byte a token, joined with the one before where it would repeat
        if p in seen:
            joined[-1] += p
        else:
            joined.append(p)
            seen.add(p)
    with Server(program, script + joined) as s:
        expect(s.chat(**OFF), content=emoji + "\N{REPLACEMENT CHARACTER}")


def test_life(program):
    script = ["--prompt-tail", "</think>\\n\\n", "--exact", "--answer", "ab", "cd", "--cycle"]
    with Server(program, script, "--shutdown-timeout", "0.2") as s:
        started = time.monotonic()
        second = subprocess.run(s.command, capture_output=True, text=True, timeout=60)
        assert second.returncode not in (0, None)
        assert f"127.0.0.1:{s.port}" in second.stderr, second.stderr
        assert time.monotonic() - started < 5
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/chat/completions",
                  json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True, **OFF}),
                  {"Content-Type": "application/json"})
        answer = c.getresponse()
        assert answer.status == 200
        assert answer.readline().startswith(b"data: {")
        s.process.send_signal(signal.SIGTERM)
        rest = answer.read().decode()
        assert rest.endswith("data: [DONE]\n\n"), rest[-200:]
        assert '"error"' in rest or '"finish_reason":"length"' in rest
        assert s.process.wait(timeout=60) == 0


def main():
    program = sys.argv[1]
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test(program)
            print("ok", name, flush=True)


if __name__ == "__main__":
    main()
