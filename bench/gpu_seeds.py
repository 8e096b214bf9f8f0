#!/usr/bin/env python3
"""The launch line with several --cpu-offload-gb at several budgets: each line answers a request, or is refused at the
start with exit code 4 and numbers; then lines with these numbers must answer.

    bench/gpu_seeds.py SPILLWAY MODEL [GIB,... [BUDGET,...]]     default 10,12,14 at 12,16
"""
import sys

from card_server import DEVICE, Server, advice, card_memory, figure, first_answer, log_path, with_flag

NO_MEMORY = 4
LINE = ["--offload-group-size", "1", "--mem-fraction-static", "0.80", "--disable-cuda-graph"]
ADVICE_MAX = 2  # tried of each refusal


def attempt(program, model, flags, name):
    """(is right, what happened, the refusal's text)"""
    others = card_memory()
    with Server(program, model, flags, log_path(name)) as server:
        seconds = server.wait_ready()
        if seconds is not None:
            try:
                _, n = first_answer()
            except Exception as e:  # every failure counts, whatever it is
                return False, f"ready, but {e}", ""
            return True, f"ready after {seconds:.1f} s, {n} tokens, card {card_memory() - others} MiB", ""
        code, why = server.process.poll(), server.error()
    return code == NO_MEMORY and bool(advice(why)), f"code {code}: {why}", why


def main():
    program, model = sys.argv[1], sys.argv[2]
    limits = (sys.argv[3] if len(sys.argv) > 3 else "10,12,14").split(",")
    budgets = (sys.argv[4] if len(sys.argv) > 4 else "12,16").split(",")
    rows = wrong = 0
    for budget in budgets:
        for limit in limits:
            flags = ["--gpu-memory-gb", budget, "--cpu-offload-gb", limit] + LINE + DEVICE
            good, text, refusal = attempt(program, model, flags, "seeds")
            rows += 1
            wrong += not good
            print(f"{budget} GiB, --cpu-offload-gb {limit}: {'ok' if good else 'WRONG'}: {text}", flush=True)
            for name, value in advice(refusal)[:ADVICE_MAX]:
                good, text, again = attempt(program, model, with_flag(flags, name, value), "seeds")
                good = good and not again
                wrong += not good
                print(f"    with {name} {value}: {'ok' if good else 'WRONG'}: {text}", flush=True)
    figure("seeds.rows", rows)
    figure("seeds.wrong", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
