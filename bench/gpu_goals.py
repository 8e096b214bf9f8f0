#!/usr/bin/env python3
"""The closing table: each thing to be shown with its figure, its goal and PASS or FAIL.

    bench/gpu_goals.py RESULTS

Reads what the parts of gpu.sh have left in RESULTS: lines "FIGURE key value" of *.txt, spill.json, ablation.json. What
was not run is "not measured". Ends with 1 if a goal was missed.
"""
import glob
import json
import math
import os
import re
import sys

# key, what it says, "<=" or ">=" or "" (a figure without a goal), goal
GOALS = [
    ("seed.first", "launch line: the first request is answered", ">=", 1),
    ("seed.answered", "launch line: requests answered", ">=", 500),
    ("seed.failed", "launch line: requests failed", "<=", 0),
    ("seed.card_mib", "launch line: most of the card, MiB as the driver shows it", "<=", 16384),
    ("seed.growth_mib", "launch line: the card's memory after all less after the first, MiB", "<=", 32),
    ("seed.host_mib", "launch line: memory that the machine lost to it, MiB", "", 0),
    ("seed.host_over_mib", "launch line: of it more than planned, MiB", "<=", 256),
    ("seed.host_growth_mib", "launch line: host memory after all less after the first, MiB", "<=", 128),
    ("seeds.rows", "--cpu-offload-gb 10, 12, 14 at 12 and 16 GiB: lines tried", ">=", 6),
    ("seeds.wrong", "... neither answered nor refused with code 4 and numbers that work", "<=", 0),
    ("mixed.answered", "four users, prompts and long answers: answered", ">=", 1),
    ("mixed.failed", "... failed", "<=", 0),
    ("mixed.card_mib", "... most of the card, MiB", "<=", 16384),
    ("mixed.tok_s", "... tokens/s of answers, median of 30 s windows", "", 0),
    ("mixed.steady", "... slowest window after the first, of the median", ">=", 0.7),
    ("recovery.uniform", "decode steps until hits are as before a prompt of 2048, uniform", "<=", 20),
    ("recovery.local", "... local", "<=", 20),
    ("drill.pin", "memory cannot be pinned: warned or pinned, answers right", ">=", 1),
    ("drill.host", "host memory 1 GB short: file with a warning, it answers", ">=", 1),
    ("drill.host-refuse", "... with --offload-host memory: code 4 with numbers", ">=", 1),
    ("drill.file-answers", "experts in a file: answers as from memory", ">=", 1),
    ("drill.budget", "smallest budget works, 0.1 GiB less: code 4 with numbers", ">=", 1),
    ("drill.card-taken", "card partly taken before the start: fits what is left, or code 4", ">=", 1),
    ("drill.card-taken-late", "card taken while loading: code 4 with numbers, or it answers", ">=", 1),
    ("decode.16.int8.uniform", "decode tok/s, 16 GiB, int8, uniform", ">=", 260),
    ("decode.16.none.uniform", "... bf16, uniform", ">=", 220),
    ("decode.16.int8.local", "... int8, local", ">=", 450),
    ("decode.16.none.local", "... bf16, local", ">=", 380),
    ("decode.12.int8.uniform", "decode tok/s, 12 GiB, int8, uniform", ">=", 190),
    ("decode.12.none.uniform", "... bf16, uniform", ">=", 150),
    ("decode.12.int8.local", "... int8, local", ">=", 350),
    ("decode.12.none.local", "... bf16, local", ">=", 290),
    ("decode.8.int8.uniform", "decode tok/s, 8 GiB, int8, uniform", ">=", 130),
    ("decode.8.none.uniform", "... bf16, uniform", ">=", 105),
    ("decode.8.int8.local", "... int8, local", ">=", 250),
    ("decode.5.int8.uniform", "decode tok/s, 5 GiB, int8, uniform", ">=", 100),
    ("prefill.16.int8.uniform.512", "prefill tok/s, 16 GiB, int8, uniform, 512 tokens", ">=", 3000),
    ("prefill.16.int8.uniform.2048", "... 2048", ">=", 8500),
    ("prefill.16.int8.uniform.8192", "... 8192", ">=", 10000),
    ("prefill.12.int8.uniform.2048", "prefill tok/s, 12 GiB, int8, uniform, 2048 tokens", ">=", 7000),
    ("depth", "decode behind 16K tokens of that at depth 0, slowest point", ">=", 0.9),
    ("budgets", "budgets (5, 8, 12, 16 GiB x int8, bf16) that ran or were refused with numbers", ">=", 8),
    ("ablation.cache", "decode tok/s, uniform: cache, all misses fetched", "", 0),
    ("ablation.cpu", "... all computed by the CPU", "", 0),
    ("ablation.split", "... split by measured times", "", 0),
    ("ablation.ahead", "... and fetched ahead", "", 0),
    ("ablation.gain", "everything, of the best of cache and cpu, uniform", ">=", 1),
    ("ablation.gain-local", "... local", ">=", 1),
    ("overlap.2048", "prefill 2048 with overlap, of that without, uniform", ">=", 1),
    ("overlap.8192", "... 8192", ">=", 1),
]


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def speed(point, kind, tokens=None, depth=0):
    for case in point["cases"]:
        if case["kind"] == kind and (tokens is None or case["tokens"] == tokens) and case["depth"] == depth:
            return case["tok_s"]
    return None


def of_spill(found, sweep):
    ratios, judged = [], set()
    for p in sweep["points"]:
        name = f"{p['budget_gb']:g}.{p['dense_quant']}.{p['routing']}"
        if "refused" in p:
            if re.search(r"\d", p["refused"]):
                judged.add((p["budget_gb"], p["dense_quant"]))
            continue
        judged.add((p["budget_gb"], p["dense_quant"]))
        at_0, deep = speed(p, "decode"), speed(p, "decode", depth=16384)
        found[f"decode.{name}"] = at_0
        for n in (512, 2048, 8192):
            found[f"prefill.{name}.{n}"] = speed(p, "prefill", n)
        if at_0 and deep:
            ratios.append(deep / at_0)
        if "recovery" in p and p["budget_gb"] == 16 and p["dense_quant"] == "int8":
            steps = p["recovery"]["steps"]
            found[f"recovery.{p['routing']}"] = math.inf if steps is None else steps
    found["budgets"] = len(judged)
    if ratios:
        found["depth"] = min(ratios)


def of_ablation(found, sweep):
    at = {(p.get("way"), p["routing"]): p for p in sweep["points"] if "refused" not in p}
    for routing, suffix in (("uniform", ""), ("local", "-local")):
        rates = {way: speed(p, "decode") for (way, r), p in at.items() if r == routing}
        for way, rate in rates.items():
            if not suffix:
                found[f"ablation.{way}"] = rate
        if all(rates.get(w) for w in ("cache", "cpu", "ahead")):
            found[f"ablation.gain{suffix}"] = rates["ahead"] / max(rates["cache"], rates["cpu"])
    for n in (2048, 8192):
        both = [speed(at[w, "uniform"], "prefill", n) if (w, "uniform") in at else None for w in ("ahead", "turns")]
        if all(both):
            found[f"overlap.{n}"] = both[0] / both[1]


def collect(results):
    found = {}
    for path in sorted(glob.glob(os.path.join(results, "*.txt"))):
        with open(path, errors="replace") as f:
            found.update((key, float(v)) for key, v in re.findall(r"^FIGURE (\S+) (\S+)$", f.read(), re.M))
    for name, reader in (("spill", of_spill), ("ablation", of_ablation)):
        sweep = load(os.path.join(results, f"{name}.json"))
        if sweep:
            reader(found, sweep)
    return found


def judge(found):
    """The table's lines, and whether a goal was missed."""
    lines, is_missed = [], False
    for key, text, way, goal in GOALS:
        value = found.get(key)
        if value is None:
            mark = "not measured"
        elif not way:
            mark = ""
        else:
            good = value >= goal if way == ">=" else value <= goal
            mark = "PASS" if good else "FAIL"
            is_missed = is_missed or not good
        shown = "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
        lines.append(f"| {text} | {shown} | {f'{way} {goal:g}' if way else ''} | {mark} |")
    return lines, is_missed


def main():
    lines, is_missed = judge(collect(sys.argv[1]))
    print("| | figure | goal | |\n|---|---:|---:|---|\n" + "\n".join(lines))
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
