#!/usr/bin/env python3
"""Starts the server as people start it, sends N requests in several lengths, four at a time, and watches
the card's memory. Prints errors, times and memory; ends with 1 if anything failed.

    bench/serve_load.py SPILLWAY MODEL N [FLAG ...]
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


def card_memory():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True).stdout.split()
    return int(out[0]) if out else -1


def ask(i):
    words = " ".join(f"word{(i * 7 + k) % 997}" for k in range(5 + (i * 37) % 400))
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": 8 + i % 40,
            "temperature": 0 if i % 2 else 0.8, "seed": i}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions",
                                     json.dumps(body).encode(), {"Content-Type": "application/json"})
    start = time.time()
    reply = json.load(urllib.request.urlopen(request, timeout=120))
    choice = reply["choices"][0]
    if choice["finish_reason"] not in ("stop", "length"):
        raise RuntimeError(f"finish_reason {choice['finish_reason']}")
    return time.time() - start, reply["usage"]


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


def main():
    program, model, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    command = [program, "serve", "--model-path", model, "--quantization", "gptq_marlin", "--dtype", "float16",
               "--attention-backend", "triton", "--kv-cache-dtype", "fp8_e4m3", "--skip-server-warmup",
               "--trust-remote-code", "--port", str(PORT)] + sys.argv[4:]
    print(" ".join(command))
    start = time.time()
    server = subprocess.Popen(command)
    failed, times, tokens, lock = [], [], [0, 0], threading.Lock()
    todo = list(range(1, n + 1))

    def client():
        while True:
            with lock:
                if not todo:
                    return
                i = todo.pop()
            try:
                seconds, usage = ask(i)
                with lock:
                    times.append(seconds)
                    tokens[0] += usage["prompt_tokens"]
                    tokens[1] += usage["completion_tokens"]
            except Exception as e:  # every failure counts, whatever it is
                with lock:
                    failed.append(f"request {i}: {e}")

    try:
        wait_ready(server)
        print(f"ready after {time.time() - start:.1f} s")
        seconds, usage = ask(0)
        print(f"first request answered in {seconds:.3f} s: {usage}")
        before = card_memory()
        start = time.time()
        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        wall = time.time() - start
        after = card_memory()
    finally:
        server.terminate()
        server.wait(timeout=60)
    for line in failed[:10]:
        print(line)
    times.sort()
    print(f"{len(times)} of {n} requests answered, {len(failed)} failed, {tokens[0]} prompt and {tokens[1]} answer tokens in {wall:.1f} s"
          f" ({CLIENTS} clients), median {times[len(times) // 2]:.3f} s")
    print(f"card memory: {before} MiB after the first request, {after} MiB after all; server ended with {server.returncode}")
    return 1 if failed or after > before + 16 else 0


sys.exit(main())
