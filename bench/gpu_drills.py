#!/usr/bin/env python3
"""Fault drills on a card: memory that cannot be pinned, host memory too small, a budget too small, a card that others
use. Each ends with a refusal with numbers and exit code 4, or goes on with a warning and right answers.

    bench/gpu_drills.py SPILLWAY MODEL SMALL [DRILL ...]

MODEL: of full size. SMALL: a trained model, whose greedy answers are compared (those of random weights hang on the last
bits, which the CPU and the card may round differently). DRILL: pin host file budget card late; by default all.
"""
import ctypes
import multiprocessing
import os
import re
import resource
import sys
import time
import traceback

from card_server import (DEVICE, MODEL_FLAGS, Server, advice, card_memory, figure, first_answer, greedy, host_memory, log_path,
                         planned, planned_host_mib)

NO_MEMORY = 4
GIB_16 = ["--gpu-memory-gb", "16"]
SMALL_LINE = ["--gpu-expert-slots", "50%"]
PROMPT, N_TOKENS = "The quick brown fox", 24
CAP_IPC_LOCK, PR_CAPBSET_DROP = 14, 24
LEAVE_MIB_MIN = 2048  # of the host, whatever a drill takes
HOGS = 8


# ---- what takes memory ----

def hold_host(n_bytes, ready, end):
    """A process that touches so much."""
    import mmap
    room = mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    step = 1 << 20
    filled = b"\1" * step
    for at in range(0, n_bytes, step):
        room[at:at + step] = filled[:min(step, n_bytes - at)]
    ready.release()
    end.wait()


class HostHog:
    """Takes memory until the machine has only so many MiB left; with HostHog(left): ..."""

    def __init__(self, left_mib):
        take = int(host_memory("self")["available"] - max(left_mib, LEAVE_MIB_MIN))
        self.end, ready = multiprocessing.Event(), multiprocessing.Semaphore(0)
        self.workers = [multiprocessing.Process(target=hold_host, args=((take << 20) // HOGS, ready, self.end),
                                                daemon=True) for _ in range(HOGS if take > 0 else 0)]
        for w in self.workers:
            w.start()
        for w in self.workers:
            ready.acquire(timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.set()
        for w in self.workers:
            w.join(timeout=30)
            if w.is_alive():
                w.kill()


def hold_card(left, ready, end):
    """A process that takes memory of the card, through the driver's interface; left: MiB, sent one after the other."""
    cuda, context, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def must(code, what):
        if code != 0:
            print(f"{what}: error {code} of the driver", flush=True)
        return code == 0

    must(cuda.cuInit(0), "cuInit")
    must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), "cuCtxCreate")
    while not end.is_set():
        want = left.get()
        if want is None:
            return
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        take = free.value - (want << 20)
        if take > 0:
            must(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(take)), f"cuMemAlloc of {take >> 20} MiB")
        ready.release()


class CardHog:
    """with CardHog() as hog: hog.leave(MiB)"""

    def __init__(self):
        spawn = multiprocessing.get_context("spawn")
        self.left, self.ready, self.end = spawn.Queue(), spawn.Semaphore(0), spawn.Event()
        self.worker = spawn.Process(target=hold_card, args=(self.left, self.ready, self.end), daemon=True)
        self.worker.start()

    def leave(self, mib):
        self.left.put(mib)
        for _ in range(600):
            if self.ready.acquire(timeout=0.1):
                return True
            if not self.worker.is_alive():
                return False
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.set()
        self.left.put(None)
        self.worker.join(timeout=30)
        if self.worker.is_alive():
            self.worker.kill()


def without_pinning():
    """In the server's process before it starts: 64 KiB may be locked, and root's right to lock more is gone."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


# ---- judging ----

class Run:
    """A server's start, its first answer and a greedy one; or how it ended."""

    def __init__(self, program, model, flags, name, model_flags=MODEL_FLAGS, preexec=None, meanwhile=None):
        self.answer = self.fault = ""
        others = card_memory()
        with Server(program, model, flags + DEVICE, log_path(f"drill-{name}"), model_flags, preexec) as server:
            if meanwhile:
                meanwhile(server)
            self.is_ready = server.wait_ready() is not None
            if self.is_ready:
                try:
                    first_answer()
                    self.answer = greedy(PROMPT, N_TOKENS)
                except Exception as e:  # every failure counts, whatever it is
                    self.fault = str(e)
                self.card_mib = card_memory() - others
            self.warnings = server.warnings()
            self.code = server.process.poll()
            self.error = server.error() if not self.is_ready else ""
        self.log = server.text()

    def answers(self):
        return self.is_ready and not self.fault and self.answer != ""

    def is_refused(self):
        """With the code for memory, and numbers."""
        return not self.is_ready and self.code == NO_MEMORY and re.search(r"\d", self.error) is not None

    def show(self, what):
        text = f"answers, card {self.card_mib} MiB" if self.answers() else (
            f"ready, but {self.fault}" if self.is_ready else f"code {self.code}: {self.error}")
        print(f"{what}: {text}", flush=True)
        for line in self.warnings[:4]:
            print(f"    {line}", flush=True)
        return self


def same(a, b, what):
    good = a.answers() and b.answers() and a.answer == b.answer
    print(f"{what}: {'the same' if good else 'OTHER'} greedy answer of {N_TOKENS} tokens", flush=True)
    return good


# ---- drills ----

def drill_pin(program, model, small):
    full = Run(program, model, GIB_16, "pin", preexec=without_pinning).show("full size, 64 KiB may be locked")
    warned = [w for w in full.warnings if "pinned" in w]
    print("    the program fell back" if warned else
          "    the driver pins regardless of RLIMIT_MEMLOCK: no fallback was needed", flush=True)
    plain = Run(program, small, SMALL_LINE, "pin-plain", model_flags=[]).show("small model")
    limited = Run(program, small, SMALL_LINE, "pin-small", model_flags=[], preexec=without_pinning)
    limited.show("small model, 64 KiB may be locked")
    return {"pin": (full.answers() or full.is_refused()) and same(plain, limited, "small model")}


def drill_host(program, model, small):
    plan, why = planned(program, model, GIB_16)
    if not plan:
        print(f"no plan: {why}")
        return {"host": False, "host-refuse": False}
    host, loading = planned_host_mib(plan)
    with HostHog(host + loading - 1024):
        print(f"planned: {host:.0f} MiB of the host and {loading:.0f} while loading; left: "
              f"{host_memory('self')['available']:.0f}", flush=True)
        run = Run(program, model, GIB_16, "host").show("by default")
        memory = Run(program, model, GIB_16 + ["--offload-host", "memory"], "host-memory")
        memory.show("--offload-host memory")
    warned = any("file" in w for w in run.warnings)
    return {"host": (run.answers() and warned) or run.is_refused(), "host-refuse": memory.is_refused()}


def drill_file(program, model, small):
    plain = Run(program, small, SMALL_LINE, "file-plain", model_flags=[]).show("small model, experts in memory")
    file = Run(program, small, SMALL_LINE + ["--offload-host", "file"], "file", model_flags=[])
    file.show("small model, experts in a file")
    return {"file-answers": same(plain, file, "small model")}


def drill_budget(program, model, small):
    refused = Run(program, model, ["--gpu-memory-gb", "1"], "budget").show("1 GiB")
    least = dict(advice(refused.error)).get("--gpu-memory-gb")
    if not refused.is_refused() or not least:
        return {"budget": False}
    works = Run(program, model, ["--gpu-memory-gb", least], "budget-least").show(f"{least} GiB")
    short = f"{float(least) - 0.1:.1f}"
    less = Run(program, model, ["--gpu-memory-gb", short], "budget-less").show(f"{short} GiB")
    return {"budget": works.answers() and less.is_refused()}


def drill_card(program, model, small):
    with CardHog() as hog:
        if not hog.leave(12 * 1024):
            print("the card's memory could not be taken")
            return {"card-taken": False}
        some = Run(program, model, [], "card-12").show("12 GiB of the card are free")
        hog.leave(1024)
        none = Run(program, model, [], "card-1").show("1 GiB of the card is free")
    return {"card-taken": some.answers() and none.is_refused()}


def drill_late(program, model, small):
    with CardHog() as hog:
        if not hog.leave(20 * 1024):
            print("the card's memory could not be taken")
            return {"card-taken-late": False}

        def take(server):
            planned_it = server.wait_text(r"total +\d")  # the placement's table is the last before loading
            took = hog.leave(256)
            print(f"placement {'seen' if planned_it else 'NOT seen'}, the rest {'taken' if took else 'NOT taken'}",
                  flush=True)

        run = Run(program, model, GIB_16, "card-late", meanwhile=take).show("taken between the plan and the end of loading")
    return {"card-taken-late": run.answers() or run.is_refused()}


DRILLS = {"pin": drill_pin, "host": drill_host, "file": drill_file, "budget": drill_budget, "card": drill_card,
          "late": drill_late}
KEYS = {"pin": ["pin"], "host": ["host", "host-refuse"], "file": ["file-answers"], "budget": ["budget"],
        "card": ["card-taken"], "late": ["card-taken-late"]}


def main():
    program, model, small = sys.argv[1:4]
    is_wrong = False
    for name in sys.argv[4:] or DRILLS:
        print(f"-- {name}", flush=True)
        start = time.time()
        try:
            results = DRILLS[name](program, model, small)
        except Exception:  # the other drills go on
            traceback.print_exc(file=sys.stdout)
            results = dict.fromkeys(KEYS[name], False)
        for key, good in results.items():
            figure(f"drill.{key}", int(good))
            is_wrong = is_wrong or not good
        print(f"   {time.time() - start:.0f} s", flush=True)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
