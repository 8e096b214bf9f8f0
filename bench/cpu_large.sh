#!/bin/sh
# The full-size 35B-A3B shape (random weights) on the CPU alone: decode and prefill by thread count.
#
#     bench/cpu_large.sh SPILLWAY WORKDIR RESULTDIR
#
# Writes the checkpoint to WORKDIR (22 GB) unless it is there, and JSON, text and SVG to RESULTDIR.
# Thread counts: 1, 2, 4, ... up to the machine's; prefill with all threads and with four.
set -eu
spillway=$1 work=$2 results=$3
model=$work/random-35b
all=$(nproc)
mkdir -p "$work" "$results"

[ -f "$model/config.json" ] || "$spillway" make-model --shape qwen3.5-35b-a3b --out "$model"

threads=1
t=2
while [ "$t" -le "$all" ]; do
    threads=$threads,$t
    t=$((t * 2))
done

run() { # NAME FLAGS...
    name=$1
    shift
    echo "== $name"
    "$spillway" bench --model "$model" --routing uniform --repeat 3 --max-running-requests 4 \
        --max-total-tokens 8192 --json "$results/$name.json" --plot "$results/$name.svg" "$@" 2>"$results/$name.log" |
        tee "$results/$name.txt" || tail -5 "$results/$name.log"
}
run decode-int8-dense --dense-quant int8 --prefill none --depth 0 --batch 1 --decode-tokens 16 --threads "$threads"
run prefill-int8-dense --dense-quant int8 --prefill 256,512,2048 --batch none --threads "$all"
run prefill-4-threads --dense-quant int8 --prefill 256 --batch none --threads 4
run decode-bf16-dense --prefill none --depth 0 --batch 1 --decode-tokens 16 --threads "$all" --profile
