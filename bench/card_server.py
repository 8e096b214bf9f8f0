"""What the scripts that drive a server on a card share: the launch line, memory as the driver and the kernel count
it, requests, metrics. Only the standard library, as machines with a card are often bare.
"""
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request

PORT = 30123
START_SECONDS = 200
REQUEST_SECONDS = 300
SAMPLE_SECONDS = 0.25
MIB = 1 << 20

# The line that people come with, less --cpu-offload-gb and what follows it, and the request that they send.
MODEL_FLAGS = ["--quantization", "gptq_marlin", "--dtype", "float16", "--kv-cache-dtype", "fp8_e4m3"]
DEVICE = ["--device", os.environ.get("DEVICE", "cuda")]  # never the CPU unseen
SERVER_FLAGS = ["--attention-backend", "triton", "--skip-server-warmup", "--trust-remote-code"]
FIRST_BODY = b'{"model":"default","messages":[{"role":"user","content":"Hello"}],"max_tokens":50}'


def card_memory(what="used"):
    """MiB of the first card as the driver shows it; -1: there is no card."""
    try:
        out = subprocess.run(["nvidia-smi", f"--query-gpu=memory.{what}", "--format=csv,noheader,nounits"],
                             capture_output=True, text=True).stdout.split()
    except OSError:
        return -1
    return int(out[0]) if out and out[0].isdigit() else -1


class Watch(threading.Thread):
    """Samples the card's memory until stopped; `most` is the largest figure."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most, self.is_over = 0, threading.Event()

    def run(self):
        while not self.is_over.wait(SAMPLE_SECONDS):
            self.most = max(self.most, card_memory())


def numbers_of(path):
    """A file of "Key:  N kB" lines, in MiB."""
    with open(path) as lines:
        found = re.findall(r"^(\w+):\s+(\d+) kB", lines.read(), re.M)
    return {key: int(n) / 1024 for key, n in found}


def cgroup_left(folder):
    """MiB that a memory limit leaves, where pages of files count as free; infinite without one."""
    def read(name):
        with open(os.path.join(folder, name)) as f:
            return f.read()
    try:
        limit, used = int(read("memory.max")), int(read("memory.current"))
        file = int(re.search(r"^file (\d+)$", read("memory.stat"), re.M)[1])
    except (OSError, ValueError, TypeError):
        return float("inf")
    return (limit - (used - min(used, file))) / MIB


def host_memory(pid):
    """MiB: anonymous and shared pages of the process, its mapped files, what the machine has left. Memory that the
    driver has made itself is in none of a process's figures, so what the machine has left is the one that counts; it is
    found as the program's own check finds it."""
    own = numbers_of(f"/proc/{pid}/status")
    return {"own": own.get("RssAnon", 0) + own.get("RssShmem", 0), "files": own.get("RssFile", 0),
            "locked": own.get("VmLck", 0) + own.get("VmPin", 0),
            "available": min(numbers_of("/proc/meminfo")["MemAvailable"], cgroup_left("/sys/fs/cgroup"))}


class Server:
    """A server and what it writes. with Server(...) as s: s.wait_ready(); ends it at the end."""

    def __init__(self, program, model, flags, log, model_flags=MODEL_FLAGS, preexec=None):
        self.command = [program, "serve", "--model-path", model, *model_flags, *SERVER_FLAGS, "--port",
                        str(PORT), *flags]
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, preexec_fn=preexec)
        self.start = time.time()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def error(self):
        lines = [line for line in self.text().splitlines() if "error" in line]
        return lines[-1] if lines else "(no error in its log)"

    def warnings(self):
        return [line for line in self.text().splitlines() if "warning: " in line and "accepted, no effect" not in line]

    def wait_ready(self):
        """Seconds until ready; None: it ended before, or did not get ready in time."""
        while time.time() - self.start < START_SECONDS:
            if self.process.poll() is not None:
                return None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
                return time.time() - self.start
            except OSError:
                time.sleep(0.1)
        return None

    def wait_text(self, pattern):
        """Whether the log came to hold it before the server was ready or ended."""
        while self.process.poll() is None and time.time() - self.start < START_SECONDS:
            if re.search(pattern, self.text()):
                return True
            time.sleep(0.01)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", body, {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request, timeout=REQUEST_SECONDS))
    except urllib.error.HTTPError as e:
        raise RuntimeError(f"{e.code}: {e.read()[:300]!r}") from e


def first_answer():
    """The request that people send first: its answer, checked for what a client reads of it."""
    answer = post("/v1/chat/completions", FIRST_BODY)
    choice = answer["choices"][0]
    message = choice["message"]
    text = (message.get("content") or "") + (message.get("reasoning_content") or "")
    n = answer["usage"]["completion_tokens"]
    if choice["finish_reason"] not in ("stop", "length") or not 0 < n <= 50:
        raise RuntimeError(f"not an answer: {answer}")
    return text, n


def greedy(prompt, n_tokens):
    body = {"model": "default", "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    return post("/v1/completions", json.dumps(body).encode())["choices"][0]["text"]


def counters():
    """All plain numbers of /metrics; labels other than the model's are kept in the name."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10).read().decode()
    return counters_of(text)


def counters_of(text):
    found = {}
    for line in text.splitlines():
        m = re.match(r'(spillway_\w+)\{model_name="[^"]*"(?:,(.*))?\} (\S+)$', line)
        if m and "_bucket" not in m[1]:
            found[m[1] + (f"{{{m[2]}}}" if m[2] else "")] = float(m[3])
    return found


class Poll(threading.Thread):
    """Reads the counters every second: samples of (seconds, counters)."""

    def __init__(self):
        super().__init__(daemon=True)
        self.samples, self.is_over = [], threading.Event()

    def run(self):
        while True:
            try:
                self.samples.append((time.time(), counters()))
            except OSError:
                pass
            if self.is_over.wait(1):
                return


def windows(samples, seconds, key):
    """Growth per second of a counter in whole windows of so many seconds. A counter that is not there: []."""
    rates, first = [], None
    for at, values in samples:
        if key not in values:
            continue
        if first is None:
            first = (at, values[key])
        elif at - first[0] >= seconds:
            rates.append((values[key] - first[1]) / (at - first[0]))
            first = (at, values[key])
    return rates


def planned(program, model, flags, model_flags=MODEL_FLAGS):
    """What `spillway plan --json` says about this line; None with its error if it refuses."""
    done = subprocess.run([program, "plan", model, *model_flags, *flags, "--no-measure", "--json"],
                          capture_output=True, text=True)
    return (json.loads(done.stdout), "") if done.returncode == 0 else (None, done.stderr.strip())


def planned_host_mib(plan):
    return sum(plan["host_bytes"].values()) / MIB, plan["host_loading_bytes"] / MIB


def advice(message):
    """What a refusal says would do: [[flag, value], ...]. Of --cpu-offload-gb it gives the bytes that do not fit."""
    found = [list(pair) for pair in re.findall(r"(?:it fits with|, or) (--[a-z-]+) ([\w.%]+)", message)]
    absent = re.search(r"--cpu-offload-gb \S+ is too little, ([\d.]+) GiB", message)
    if absent:
        found.insert(0, ["--cpu-offload-gb", f"{float(absent[1]) + 0.01:.2f}"])
    return found


def with_flag(flags, name, value):
    """flags with one of them replaced or added."""
    out = list(flags)
    if name in out:
        out[out.index(name) + 1] = value
        return out
    return out + [name, value]


def figure(key, value):
    """A line that gpu_goals.py reads from the logs."""
    print(f"FIGURE {key} {value:g}", flush=True)


def log_path(name):
    return os.path.join(os.environ.get("RESULTS", "/tmp"), f"server-{name}.log")
