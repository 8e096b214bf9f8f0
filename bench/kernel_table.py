#!/usr/bin/env python3
"""Adds up what ncu measured: time by kernel over the last complete decode step of a run.

    ncu --clock-control none --metrics gpu__time_duration.sum --csv --log-file FILE \\
        spillway bench --device cuda --disable-cuda-graph --prefill none --depth 0 --batch 1 ...
    bench/kernel_table.py FILE [STEP_MICROSECONDS]

A step begins at its embedding. STEP_MICROSECONDS, the time of a step as measured without ncu, is set beside
the sum: kernels of a captured step overlap, under ncu they run one by one.
"""
import csv
import sys


def launches(path):
    lines = [line for line in open(path) if line.startswith('"')]
    for row in csv.DictReader(lines):
        value = float(row["Metric Value"].replace(",", ""))
        unit = row["Metric Unit"]
        scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}[unit]
        yield row["Kernel Name"].split("(")[0], value * scale


def last_step(all_launches):
    starts = [i for i, (name, _) in enumerate(all_launches) if name.startswith("embed")]
    if len(starts) < 2:
        sys.exit("no complete step: at least two embeddings are needed")
    return all_launches[starts[-2]:starts[-1]]


def main():
    step = last_step(list(launches(sys.argv[1])))
    total = sum(us for _, us in step)
    table = {}
    for name, us in step:
        count, time = table.get(name, (0, 0.0))
        table[name] = (count + 1, time + us)
    print(f"{'kernel':<36} {'calls':>6} {'us':>9} {'us each':>8} {'share':>7}")
    for name, (count, time) in sorted(table.items(), key=lambda item: -item[1][1]):
        print(f"{name:<36} {count:>6} {time:>9.1f} {time / count:>8.2f} {100 * time / total:>6.1f}%")
    print(f"{'all kernels':<36} {len(step):>6} {total:>9.1f}")
    if len(sys.argv) > 2:
        print(f"a step without ncu: {float(sys.argv[2]):.1f} us; kernels are {100 * total / float(sys.argv[2]):.0f} % of it")


main()
