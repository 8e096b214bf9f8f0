#!/usr/bin/env python3
"""Starts the server as people start it, sends requests from four clients and watches the card's memory as the
driver counts it. Prints errors, times, memory and what is known of overflowing experts; ends with 1 if anything
failed, or memory grew after the first request or passed the limit.

    bench/serve_load.py SPILLWAY MODEL N [--minutes=M] [--limit-mib=L] [SERVER FLAG ...]

N requests of several lengths; with --minutes users who alternate long prompts (prefill) and long answers (decode)
for so long instead. --limit-mib: what the server may take of the card, as nvidia-smi shows it.
"""
import json
import subprocess
import sys
import threading
import time
import urllib.request

PORT = 30123
CLIENTS = 4
START_SECONDS = 300
REQUEST_SECONDS = 300
SAMPLE_SECONDS = 0.25
GROWTH_MIB = 32  # after the first request: graphs of steps of other sizes, a few MiB each


def card_memory():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True).stdout.split()
    return int(out[0]) if out else -1


class Watch(threading.Thread):
    """Samples the card's memory until stopped; `most` is the largest figure."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.is_over = 0, threading.Event()

    def run(self):
        while not self.is_over.wait(SAMPLE_SECONDS):
            self.most = max(self.most, card_memory())


def words(i, n):
    return " ".join(f"word{(i * 7 + k) % 997}" for k in range(n))


def ask(i, n_words, n_tokens):
    """One streamed answer: seconds to its first piece, seconds in all, usage."""
    body = {"model": "m", "messages": [{"role": "user", "content": words(i, n_words)}], "max_tokens": n_tokens,
            "temperature": 0 if i % 2 else 0.8, "seed": i, "stream": True, "ignore_eos": n_tokens > 60,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions",
                                     json.dumps(body).encode(), {"Content-Type": "application/json"})
    start, first, reason, usage = time.time(), None, None, None
    for line in urllib.request.urlopen(request, timeout=REQUEST_SECONDS):
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            if first is None and (delta.get("content") or delta.get("reasoning_content")):
                first = time.time() - start
            reason = choice.get("finish_reason") or reason
    if reason not in ("stop", "length") or usage is None:
        raise RuntimeError(f"finish_reason {reason}, usage {usage}")
    return first if first is not None else time.time() - start, time.time() - start, usage


def of_several_lengths(n):
    for i in range(1, n + 1):
        yield i, 5 + (i * 37) % 400, 8 + i % 40


def mixed(minutes):
    until, i = time.time() + 60 * minutes, 0
    while time.time() < until:
        i += 1
        yield (i, 600 + (i * 137) % 2000, 8) if i // CLIENTS % 2 else (i, 20, 200)


def wait_ready(server):
    for _ in range(START_SECONDS * 5):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the server was not ready in time")


def run_clients(requests):
    done, failed, lock = [], [], threading.Lock()

    def client():
        while True:
            with lock:
                request = next(requests, None)
            if request is None:
                return
            try:
                answer = (request, *ask(*request))
                with lock:
                    done.append(answer)
            except Exception as e:  # every failure counts, whatever it is
                with lock:
                    failed.append(f"request {request}: {e}")

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return done, failed


def at(values, share):
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


def report(done, failed, wall):
    prompt = sum(d[3]["prompt_tokens"] for d in done)
    output = sum(d[3]["completion_tokens"] for d in done)
    first = [d[1] for d in done]
    speeds = [(d[3]["completion_tokens"] - 1) / (d[2] - d[1]) for d in done
              if d[3]["completion_tokens"] > 60 and d[2] > d[1]]
    print(f"{len(done)} of {len(done) + len(failed)} requests answered, {len(failed)} failed, {prompt} prompt and "
          f"{output} answer tokens in {wall:.1f} s ({CLIENTS} clients)")
    print(f"first token after {at(first, 0.5):.3f} s (median), {at(first, 0.95):.3f} s (95 %); "
          f"{prompt / wall:.0f} prompt and {output / wall:.1f} answer tok/s; "
          f"long answers {at(speeds, 0.5):.1f} tok/s each (median)")


def print_overflow():
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10).read().decode()
    values = [line for line in text.splitlines() if line.startswith("spillway_offload_")]
    short = [f"{v.split('{')[0][len('spillway_offload_'):]} {float(v.rsplit(' ', 1)[1]):.4g}" for v in values
             if any(k in v for k in ("_slots", "hit_ratio", "fetch_share", "accuracy", "per_second"))]
    if short:
        print("experts: " + ", ".join(short))


def main():
    program, model, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    own = dict(a[2:].split("=", 1) for a in sys.argv[4:] if a.startswith(("--minutes=", "--limit-mib=")))
    flags = [a for a in sys.argv[4:] if not a.startswith(("--minutes=", "--limit-mib="))]
    minutes, limit = float(own.get("minutes", 0)), int(own.get("limit-mib", 0))
    command = [program, "serve", "--model-path", model, "--quantization", "gptq_marlin", "--dtype", "float16",
               "--attention-backend", "triton", "--kv-cache-dtype", "fp8_e4m3", "--skip-server-warmup",
               "--trust-remote-code", "--port", str(PORT)] + flags
    print(" ".join(command))
    others = card_memory()  # taken before, by whoever
    watch = Watch()
    watch.start()
    start = time.time()
    server = subprocess.Popen(command)
    try:
        wait_ready(server)
        print(f"ready after {time.time() - start:.1f} s")
        _, seconds, usage = ask(0, 5, 8)
        print(f"first request answered in {seconds:.3f} s: {usage}")
        before = card_memory()
        start = time.time()
        done, failed = run_clients(mixed(minutes) if minutes else of_several_lengths(n))
        wall = time.time() - start
        after = card_memory()
        print_overflow()
    finally:
        watch.is_over.set()
        server.terminate()
        server.wait(timeout=60)
    for line in failed[:10]:
        print(line)
    report(done, failed, wall)
    most = watch.most - max(others, 0)
    print(f"card memory: {before - others} MiB after the first request, {after - others} MiB after all, at most {most} MiB"
          f"{f' of {limit}' if limit else ''}; server ended with {server.returncode}")
    return 1 if failed or not done or after > before + GROWTH_MIB or (limit and most > limit) else 0


sys.exit(main())
