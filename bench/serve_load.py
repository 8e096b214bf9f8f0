#!/usr/bin/env python3
"""Starts the server as people start it, sends requests from four clients and watches the card's memory as the
driver counts it and the host's as the kernel does. Prints errors, times, memory beside what was planned, speed by
windows and what is known of overflowing experts; ends with 1 if anything failed, or memory grew after the first
request or passed the limit.

    bench/serve_load.py SPILLWAY MODEL N [--name=NAME] [--minutes=M] [--window=S] [--limit-mib=L] [--short]
                        [SERVER FLAG ...]

N requests of several lengths, with --short of short answers; with --minutes users who alternate long prompts (prefill)
and long answers (decode) for so long instead. --limit-mib: what the server may take of the card, as nvidia-smi shows
it. --name: of the figures for gpu_goals.py.
"""
import json
import sys
import threading
import time
import urllib.request

from card_server import (PORT, REQUEST_SECONDS, Poll, Server, Watch, card_memory, counters, figure, first_answer,
                         host_memory, log_path, planned, planned_host_mib, windows)

CLIENTS = 4
GROWTH_MIB = 32  # after the first request: graphs of steps of other sizes, a few MiB each


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


def of_short_answers(n):
    for i in range(1, n + 1):
        yield i, 5 + (i * 37) % 200, 8 + i % 23


def mixed(minutes):
    until, i = time.time() + 60 * minutes, 0
    while time.time() < until:
        i += 1
        yield (i, 600 + (i * 137) % 2000, 8) if i // CLIENTS % 2 else (i, 20, 200)


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


def report_windows(samples, seconds, name):
    """Speed over time, and the share of hits by the same windows."""
    rates = windows(samples, seconds, "spillway_generation_tokens_total")
    if not rates:
        return
    print(f"windows of {seconds} s, answer tok/s: least {min(rates):.1f}, median {at(rates, 0.5):.1f}, most "
          f"{max(rates):.1f}: " + " ".join(f"{r:.0f}" for r in rates))
    hits = windows(samples, seconds, "spillway_offload_hits_total")
    misses = [windows(samples, seconds, f'spillway_offload_misses_total{{engine="{e}"}}') for e in ("link", "cpu")]
    if hits and len(hits) == len(misses[0]) == len(misses[1]):
        shares = [100 * h / (h + m + c) for h, m, c in zip(hits, *misses) if h + m + c > 0]
        print("windows, hits of 100 experts: " + " ".join(f"{s:.1f}" for s in shares))
    figure(f"{name}.tok_s", at(rates, 0.5))
    if len(rates) > 1:  # the first one warms up
        figure(f"{name}.steady", min(rates[1:]) / at(rates[1:], 0.5))


def print_overflow():
    values = {k[len("spillway_offload_"):]: v for k, v in counters().items() if k.startswith("spillway_offload_")}
    short = [f"{k} {v:.4g}" for k, v in values.items()
             if any(part in k for part in ("slots", "hit_ratio", "fetch_share", "accuracy", "per_second"))]
    if short:
        print("experts: " + ", ".join(short))


def report_host(before, first, after, plan, name):
    lost = before["available"] - first["available"]
    print(f"host memory, MiB: the machine has {before['available']:.0f} before, {first['available']:.0f} after the first "
          f"request, {after['available']:.0f} after all; the process has {after['own']:.0f} of its own, "
          f"{after['files']:.0f} of mapped files, {after['locked']:.0f} locked")
    figure(f"{name}.host_mib", lost)
    figure(f"{name}.host_growth_mib", after["own"] - first["own"])
    if plan:
        host, loading = planned_host_mib(plan)
        print(f"planned: card {plan['planned_bytes'] / (1 << 20):.0f} MiB, host {host:.0f} MiB and {loading:.0f} while "
              f"loading; the machine lost {lost:.0f}")
        figure(f"{name}.host_over_mib", lost - host - loading)


def read_arguments():
    own = {"name": "load", "minutes": "0", "window": "30", "limit-mib": "0", "short": ""}
    flags = []
    for a in sys.argv[4:]:
        key, _, value = a[2:].partition("=")
        if key in own:
            own[key] = value or "yes"
        else:
            flags.append(a)
    return own, flags


def main():
    program, model, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    own, flags = read_arguments()
    name, minutes, limit = own["name"], float(own["minutes"]), int(own["limit-mib"])
    plan, why = planned(program, model, flags)
    if not plan:
        print(f"plan: {why}")
    others = card_memory()  # taken before, by whoever
    host_before = host_memory("self")
    watch, poll = Watch(), Poll()
    watch.start()
    with Server(program, model, flags, log_path(name)) as server:
        print(" ".join(server.command))
        seconds = server.wait_ready()
        if seconds is None:
            print(f"not ready, {server.process.poll()}: {server.error()}")
            figure(f"{name}.failed", n or 1)
            return 1
        print(f"ready after {seconds:.1f} s")
        start = time.time()
        _, n_tokens = first_answer()
        print(f"first request answered in {time.time() - start:.3f} s: {n_tokens} tokens")
        figure(f"{name}.first", 1)
        before, host_first = card_memory(), host_memory(server.process.pid)
        poll.start()
        start = time.time()
        done, failed = run_clients(mixed(minutes) if minutes else
                                   of_short_answers(n) if own["short"] else of_several_lengths(n))
        wall = time.time() - start
        poll.is_over.set()
        after, host_after = card_memory(), host_memory(server.process.pid)
        print_overflow()
        for line in server.warnings()[:5]:
            print(line)
    watch.is_over.set()
    for line in failed[:10]:
        print(line)
    report(done, failed, wall)
    report_windows(poll.samples, float(own["window"]), name)
    report_host(host_before, host_first, host_after, plan, name)
    most = watch.most - max(others, 0)
    print(f"card memory: {before - others} MiB after the first request, {after - others} MiB after all, at most {most} MiB"
          f"{f' of {limit}' if limit else ''}; server ended with {server.process.returncode}")
    figure(f"{name}.answered", len(done))
    figure(f"{name}.failed", len(failed))
    if others >= 0:
        figure(f"{name}.card_mib", most)
        figure(f"{name}.growth_mib", after - before)
    return 1 if failed or not done or after > before + GROWTH_MIB or (limit and most > limit) else 0


if __name__ == "__main__":
    sys.exit(main())
