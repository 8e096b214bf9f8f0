#!/usr/bin/env python3
"""The scripts that measure on a card, without one: what they read out of messages, counters and sweeps, and how the
drills judge a program that stands in for spillway.

    tests/bench_scripts_test.py
"""
import json
import math
import os
import socket
import stat
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "bench"))
import card_server  # noqa: E402
import gpu_drills  # noqa: E402
import gpu_goals  # noqa: E402
import gpu_seeds  # noqa: E402

REFUSAL = ("the model does not fit, even without expert slots: 5.31 GiB are needed, {} GiB of the card may be used; "
           "it fits with --dense-quant int8, or --gpu-memory-gb 5.4, or --max-total-tokens 4096")

# A server that needs 5.4 GiB, answers, and warns when little may be locked.
STAND_IN = '''#!%s
import http.server, json, resource, sys
flags = sys.argv
def value(name, default):
    return flags[flags.index(name) + 1] if name in flags else default
budget = float(value("--gpu-memory-gb", "16"))
if budget < 5.4:
    sys.stderr.write("spillway: error: " + %r.format(budget) + "\\n")
    sys.exit(4)
if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == 65536:
    sys.stderr.write("warning: only 5 of 10 MiB of experts could be pinned\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, o):
        body = json.dumps(o).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply({})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"choices": [{"message": {"content": "hi"}, "text": "hi", "finish_reason": "stop"}],
                    "usage": {"completion_tokens": 1}})
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(value("--port", "0"))), Handler).serve_forever()
''' % (sys.executable, REFUSAL)


def point(way=None, routing="uniform", budget=16, dense="int8", decode=300.0, deep=285.0, prefill=20000.0, **more):
    cases = [{"kind": "prefill", "tokens": n, "depth": 0, "tok_s": prefill} for n in (512, 2048, 8192)]
    cases += [{"kind": "decode", "tokens": 192, "depth": d, "tok_s": t} for d, t in ((0, decode), (16384, deep))]
    return {"budget_gb": budget, "dense_quant": dense, "routing": routing, "way": way, "cases": cases, **more}


class Reading(unittest.TestCase):
    def test_advice(self):
        self.assertEqual(card_server.advice(REFUSAL.format(1)), [
            ["--dense-quant", "int8"], ["--gpu-memory-gb", "5.4"], ["--max-total-tokens", "4096"]])
        text = ("--cpu-offload-gb 10 is too little, 11.27 GiB of routed experts do not fit the card (auto allows it): 17.00 "
                "GiB are needed, 16.00 GiB of the card may be used; it fits with --gpu-memory-gb 17.1")
        self.assertEqual(card_server.advice(text), [["--cpu-offload-gb", "11.28"], ["--gpu-memory-gb", "17.1"]])
        self.assertEqual(card_server.advice("lost the card"), [])

    def test_flags(self):
        self.assertEqual(card_server.with_flag(["--a", "1", "--b", "2"], "--a", "3"), ["--a", "3", "--b", "2"])
        self.assertEqual(card_server.with_flag(["--a", "1"], "--c", "3"), ["--a", "1", "--c", "3"])

    def test_counters(self):
        found = card_server.counters_of('# HELP x y\nspillway_a_total{model_name="m"} 5\n'
                                        'spillway_b_total{model_name="m",engine="cpu"} 2\n'
                                        'spillway_c_bucket{model_name="m",le="1"} 9\n')
        self.assertEqual(found, {"spillway_a_total": 5, 'spillway_b_total{engine="cpu"}': 2})

    def test_windows(self):
        samples = [(t, {"n": 10.0 * t}) for t in range(0, 65)] + [(65, {})]
        self.assertEqual(card_server.windows(samples, 30, "n"), [10.0, 10.0])
        self.assertEqual(card_server.windows(samples, 30, "other"), [])

    def test_cgroup(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(card_server.cgroup_left(folder), math.inf)
            for name, text in (("memory.max", "104857600\n"), ("memory.current", "52428800\n"),
                               ("memory.stat", "anon 1\nfile 10485760\n")):
                with open(os.path.join(folder, name), "w") as f:
                    f.write(text)
            self.assertEqual(card_server.cgroup_left(folder), 60)
            with open(os.path.join(folder, "memory.max"), "w") as f:
                f.write("max\n")
            self.assertEqual(card_server.cgroup_left(folder), math.inf)


class Goals(unittest.TestCase):
    def test_table(self):
        recovery = {"steps": 12, "prompt": 2048}
        spill = {"points": [point(recovery=recovery), point(routing="local", decode=100.0, recovery={"steps": None}),
                            point(budget=5, dense="none", refused="5.31 GiB are needed", cases=[])]}
        ways = {"cache": 188.0, "cpu": 128.0, "split": 139.0, "ahead": 300.0}
        ablation = {"points": [point(way=w, decode=d) for w, d in ways.items()] + [point(way="turns", prefill=10000.0)]}
        with tempfile.TemporaryDirectory() as folder:
            for name, sweep in (("spill", spill), ("ablation", ablation)):
                with open(os.path.join(folder, name + ".json"), "w") as f:
                    json.dump(sweep, f)
            with open(os.path.join(folder, "seed.txt"), "w") as f:
                f.write("ready\nFIGURE seed.answered 500\nFIGURE seed.card_mib 16385\n")
            found = gpu_goals.collect(folder)
        self.assertEqual(found["recovery.uniform"], 12)
        self.assertEqual(found["recovery.local"], math.inf)
        self.assertEqual(found["budgets"], 2)
        self.assertEqual(found["depth"], 285 / 300)
        self.assertEqual(found["overlap.2048"], 2)
        self.assertEqual(found["ablation.gain"], 300 / 188)
        lines, is_missed = gpu_goals.judge(found)
        self.assertTrue(is_missed)
        self.assertEqual(sum("| PASS |" in line and "requests answered" in line for line in lines), 1)
        self.assertEqual(sum("| FAIL |" in line and "most of the card" in line for line in lines), 1)
        self.assertTrue(any("not measured" in line for line in lines))


class Drills(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.program = os.path.join(self.folder.name, "spillway")
        os.environ["RESULTS"] = self.folder.name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            card_server.PORT = free.getsockname()[1]
        with open(self.program, "w") as f:
            f.write(STAND_IN)
        os.chmod(self.program, stat.S_IRWXU)

    def tearDown(self):
        self.folder.cleanup()

    def test_budget(self):
        self.assertEqual(gpu_drills.drill_budget(self.program, "m", "m"), {"budget": True})

    def test_pin(self):
        self.assertEqual(gpu_drills.drill_pin(self.program, "m", "m"), {"pin": True})

    def test_seed(self):
        good, text, why = gpu_seeds.attempt(self.program, "m", ["--gpu-memory-gb", "5"], "seeds")
        self.assertTrue(good and why, text)
        good, text, why = gpu_seeds.attempt(self.program, "m", ["--gpu-memory-gb", "6"], "seeds")
        self.assertTrue(good and not why, text)


if __name__ == "__main__":
    unittest.main()
