#!/bin/sh
# Checks and times the CUDA backend on a machine with a card, in one call; a short table last.
#
#     bench/gpu.sh BUILD WORK RESULTS [PART ...]
#
# BUILD holds spillway and the test programs (make gpu-test builds them), WORK gets a random checkpoint of
# full size (22 GB) unless it is there, RESULTS the logs. Parts, by default all:
#
#     ops      every operation against the CPU's reference
#     golden   fixtures and demo model in float32 and half precision
#     matrix   every combination of types, with and without graphs
#     speed    full size: decode by batch and depth, prefill by length; bf16 and int8 dense matrices
#     profile  one decode step by operation, and by kernel where ncu runs
#     serve    the server at full size: 200 requests, memory before and after
#     offload  models whose experts overflow against resident ones: the matrix, over the demo model and a cut of
#              full-size layers
#     spill    full size under memory limits: decode (depth 0 and 16K) and prefill over the budget, both routings; hits
#              after a prompt
#     ablation what each way to serve misses is worth at 16 GiB, prompts with and without overlap
#     kernels  kernels of a step whose experts overflow, where ncu runs
#     seed     the launch line that people come with, 16 GiB: 500 requests, the driver's own figure all the time
#     seeds    the line with --cpu-offload-gb 10, 12, 14 at 12 and 16 GiB
#     mixed    the same under alternating long prompts and long answers, MIXED_MINUTES (default 2)
#     drills   faults: memory that cannot be pinned, host or card too small, a card that others use
#     goals    the closing table of what is in RESULTS, also of calls before; always last
#     memcheck compute-sanitizer over the tiny fixtures, where it runs
set -u
build=$1 work=$2 results=$3
shift 3
parts=${*:-ops golden matrix speed profile serve offload spill ablation kernels seed seeds mixed drills memcheck}
spillway=$build/spillway
model=$work/random-35b
cut=$work/random-35b-4-layers
gib_16="--gpu-memory-gb 16"
seed_flags="--cpu-offload-gb 12 --offload-group-size 1 --mem-fraction-static 0.80 --disable-cuda-graph"
export RESULTS="$results"
mkdir -p "$work" "$results"
summary=$results/summary.txt
fixture=tests/golden/tiny-qwen3_5-moe-gptq-int4
: >"$summary"

note() { echo "$*" | tee -a "$summary"; }

start() { # NAME COMMAND...: in the background
    name=$1
    shift
    {
        "$@" >"$results/$name.txt" 2>&1
        echo $? >"$results/$name.rc"
    } &
}

judge() { # NAME: of what start() has begun and wait has seen end; its last lines into the summary
    rc=$(cat "$results/$1.rc")
    rm "$results/$1.rc"
    if [ "$rc" = 0 ]; then
        note "$1: passed"
    else
        note "$1: FAILED ($rc)"
        grep -aE "FAILED|Error|error|assert" "$results/$1.txt" | head -5 | tee -a "$summary"
    fi
}

check() { # NAME COMMAND...
    start "$@"
    wait
    judge "$1"
}

full_size() {
    [ -f "$model/config.json" ] || "$spillway" make-model --shape qwen3.5-35b-a3b --out "$model" >/dev/null 2>&1
}

kernels() { # NAME FLAGS...: of a decode step, one by one
    name=$1
    shift
    command -v ncu >/dev/null || return 0
    timeout 150 ncu --clock-control none --metrics gpu__time_duration.sum --csv --log-file "$results/ncu-$name.csv" \
        "$spillway" bench --device cuda --model "$model" --repeat 1 --decode-tokens 3 --depth 0 --batch 1 \
        --prefill none --disable-cuda-graph --max-total-tokens 4096 "$@" >/dev/null 2>&1
    note "== kernels of a decode step, $name"
    python3 bench/kernel_table.py "$results/ncu-$name.csv" | tee -a "$summary"
}

load() { # NAME REQUESTS FLAGS...: the server and its clients
    name=$1 n=$2
    shift 2
    check "$name" python3 bench/serve_load.py "$spillway" "$model" "$n" --name="$name" "$@"
    grep -aE "^(ready|not ready|first token|experts|windows|planned|host memory|card memory|[0-9]+ of)" "$results/$name.txt" | tee -a "$summary"
}

bench() { # NAME FLAGS...
    name=$1
    shift
    "$spillway" bench --device cuda --model "$model" --json "$results/$name.json" "$@" \
        >"$results/$name.txt" 2>"$results/$name.log" || tail -2 "$results/$name.log" | tee -a "$summary"
    note "== $name: $*"
    grep -aE "^(bounds|load|prefill [0-9]+ .*%|decode .*%)" "$results/$name.txt" | tee -a "$summary"
}

for part in $parts; do
    echo "--- $part"
    case $part in
    ops)
        for t in "$build"/cuda_*_test; do
            start "$(basename "$t")" "$t"
        done
        wait
        for t in "$build"/cuda_*_test; do
            judge "$(basename "$t")"
        done
        ;;
    golden)
        start golden-graphs "$build/golden_fixtures_test" cuda
        start golden-no-graphs "$build/golden_fixtures_test" cuda-no-graphs
        wait
        judge golden-graphs
        judge golden-no-graphs
        for dtype in float32 bfloat16 float16; do
            "$spillway" eval --device cuda --model models/rill --golden models/rill/golden.json \
                --dtype $dtype >"$results/rill-$dtype.txt" 2>&1
            note "rill $dtype: $(tail -2 "$results/rill-$dtype.txt" | tr '\n' ';')"
        done
        ;;
    matrix)
        start matrix-graphs "$build/golden_matrix_test" cuda
        start matrix-no-graphs "$build/golden_matrix_test" cuda-no-graphs
        wait
        judge matrix-graphs
        judge matrix-no-graphs
        ;;
    speed)
        full_size
        for dense in none int8; do
            bench "speed-$dense" --dense-quant $dense --repeat 3 --decode-tokens 64 --depth 0,16384 --batch 1 \
                --prefill 512,2048,8192 --chunked-prefill-size 8192 --max-total-tokens 32768
            bench "batch-$dense" --dense-quant $dense --repeat 3 --decode-tokens 32 --depth 0 --batch 8,32 \
                --prefill none --max-total-tokens 32768
        done
        ;;
    profile)
        full_size
        "$spillway" bench --device cuda --model "$model" --repeat 1 --decode-tokens 16 --depth 0 --batch 1 \
            --prefill none --profile >"$results/profile.txt" 2>&1
        sed -n '/^profile/,$p' "$results/profile.txt"
        for dense in none int8; do
            kernels "dense-$dense" --dense-quant $dense
        done
        ;;
    serve)
        full_size
        load serve 200
        ;;
    offload)
        [ -f "$cut/config.json" ] ||
            "$spillway" make-model --shape qwen3.5-35b-a3b --layers 4 --out "$cut" >/dev/null 2>&1
        check offload-model "$build/offload_model_test"
        check offload-matrix "$build/offload_matrix_test" cuda "$cut"
        note "offload-matrix: $(grep -acE ' (no )?graphs ' "$results/offload-matrix.txt") cells, $(grep -ac 'FAILED' "$results/offload-matrix.txt") lines with FAILED"
        ;;
    spill)
        full_size
        "$spillway" bench --device cuda --model "$model" --offload --gpu-memory-gb "${SPILL_BUDGETS:-5,8,12,16}" \
            --depth "${SPILL_DEPTHS:-0,16384}" --decode-tokens 192 --repeat 2 \
            --recovery 2048 --json "$results/spill.json" --plot "$results/spill.svg" >"$results/spill.txt" \
            2>"$results/spill.log" || tail -2 "$results/spill.log" | tee -a "$summary"
        tee -a "$summary" <"$results/spill.txt"
        ;;
    ablation)
        full_size
        "$spillway" bench --device cuda --model "$model" --offload-ablation --decode-tokens 192 --json \
            "$results/ablation.json" >"$results/ablation.txt" 2>"$results/ablation.log" ||
            tail -2 "$results/ablation.log" | tee -a "$summary"
        tee -a "$summary" <"$results/ablation.txt"
        ;;
    kernels)
        full_size
        kernels spill-uniform $gib_16 --dense-quant int8 --routing uniform
        kernels spill-local $gib_16 --dense-quant int8 --routing local
        ;;
    seed)
        full_size
        load seed 500 --short --limit-mib=16384 $seed_flags $gib_16
        ;;
    seeds)
        full_size
        check seeds python3 bench/gpu_seeds.py "$spillway" "$model"
        grep -a "cpu-offload-gb\|  with" "$results/seeds.txt" | cut -c1-300 | tee -a "$summary"
        ;;
    drills)
        full_size
        check drills python3 bench/gpu_drills.py "$spillway" "$model" models/rill ${DRILLS:-}
        grep -av "^FIGURE" "$results/drills.txt" | cut -c1-300 | tee -a "$summary"
        ;;
    goals) ;; # after all others
    mixed)
        full_size
        load mixed 0 --minutes="${MIXED_MINUTES:-2}" --limit-mib=16384 $gib_16
        ;;
    memcheck)
        for tool in memcheck racecheck; do
            if command -v compute-sanitizer >/dev/null; then
                check "$tool" timeout 120 compute-sanitizer --tool $tool --error-exitcode 9 --report-api-errors no \
                    "$spillway" eval --device cuda --model "$fixture" --inputs "$fixture/reference.safetensors" \
                    --outputs "$work/out.safetensors" --greedy 4 --dtype bfloat16
            else
                note "$tool: compute-sanitizer is not on this machine"
            fi
        done
        ;;
    *) echo "unknown part $part" >&2 && exit 2 ;;
    esac
done
echo "--- summary"
cat "$summary"
python3 bench/gpu_goals.py "$results" | tee "$results/goals.md"
