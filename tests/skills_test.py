#!/usr/bin/env python3
"""skills_test.py - asks the demo model the questions of its own exam, over HTTP.

Place:  tests; run by skills_test.sh, or by hand against a running server:
            tests/skills_test.py --url http://127.0.0.1:30000
        (start that one with --reasoning-parser none --tool-call-parser none: the raw reply is judged).
Idea:   models/rill/scores.json holds the share of right answers that the model had when it was made, by
        the training program's own arithmetic. The same questions with the same greedy decoding must
        give the same share here, up to MISSES_MAX questions of a skill. A fault anywhere between
        template and sampler shows as a skill that is gone. Python 3 standard library only.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..")
sys.path.insert(0, os.path.join(ROOT, "tools", "demo-model"))
import corpus  # noqa: E402

SEED, QUESTIONS, TOKENS_MAX = 7, 16, 220  # as the scores were made
MISSES_MAX = 2
WORKERS = 8
START_S, ANSWER_S = 120, 600


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


def reply_of(url, messages, tools, thinking):
    body = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": TOKENS_MAX,
        "chat_template_kwargs": {"enable_thinking": thinking},
    }
    if tools:
        body["tools"] = tools
    return post(url, "/v1/chat/completions", body)["choices"][0]["message"]["content"] or ""


def ask(url, skill):
    """[(is right, reply)] of one skill."""
    name, _, think = skill.partition("+")
    questions = corpus.evaluation(SEED, name, QUESTIONS)
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        replies = list(pool.map(lambda q: reply_of(url, q[0], q[1], think == "think"), questions))
    return [(corpus.check(checker, expected, reply), reply)
            for (_, _, expected, checker), reply in zip(questions, replies)]


def run(url, skills, column, show_wrong):
    with open(os.path.join(ROOT, "models", "rill", "scores.json"), encoding="utf-8") as f:
        scores = json.load(f)[column]
    bad = []
    print(f"{'skill':24} {'here':>6} {'trained':>8}  seconds")
    for skill in skills or scores:
        started = time.monotonic()
        answers = ask(url, skill)
        right = sum(1 for is_right, _ in answers if is_right)
        wanted = round(scores[skill] * QUESTIONS)
        is_bad = abs(right - wanted) > MISSES_MAX
        print(f"{skill:24} {right:3}/{QUESTIONS} {wanted:5}/{QUESTIONS}  "
              f"{time.monotonic() - started:6.1f}{'  <- differs' if is_bad else ''}", flush=True)
        if is_bad:
            bad.append(skill)
        if show_wrong:
            for is_right, reply in answers:
                if not is_right:
                    print("    wrong:", json.dumps(reply))
    return bad


def start_server(program):
    """A server on a free port: (process, url)."""
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([program, "serve", "--model", os.path.join(ROOT, "models", "rill"),
                                "--port", str(port), "--reasoning-parser", "none",
                                "--tool-call-parser", "none", "--log-level", "warning"])
    for _ in range(START_S * 10):
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return process, url
        except OSError:
            if process.poll() is not None:
                sys.exit(f"the server ended with code {process.returncode}")
            time.sleep(0.1)
    process.kill()
    sys.exit("the server does not become ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; else one is started")
    parser.add_argument("--program", default=os.environ.get("SPILLWAY", "build/spillway"))
    parser.add_argument("--column", default="int4", help="of scores.json")
    parser.add_argument("--show-wrong", action="store_true")
    parser.add_argument("skills", nargs="*", help="names of scores.json; all by default")
    args = parser.parse_args()
    process = None
    url = args.url
    if not url:
        process, url = start_server(args.program)
    try:
        bad = run(url.rstrip("/"), args.skills, args.column, args.show_wrong)
    finally:
        if process:
            process.terminate()
            process.wait()
    if bad:
        sys.exit(f"skills that differ by more than {MISSES_MAX} of {QUESTIONS}: {', '.join(bad)}")
    print("skills as trained")


if __name__ == "__main__":
    main()
