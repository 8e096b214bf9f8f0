#!/bin/sh
# The bench command from outside, with tiny settings: what it prints and writes, how it refuses. Never
# how fast anything is.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rill=models/rill

fail() {
    echo "FAILED: $1"
    exit 1
}

bench() {
    "$SPILLWAY" bench --model $rill --repeat 1 --decode-tokens 2 "$@" >"$dir/out" 2>"$dir/err" ||
        fail "bench $* exits with $?: $(cat "$dir/err")"
}

says() {
    grep -q -- "$1" "$dir/out" || fail "the output lacks '$1': $(cat "$dir/out")"
}

check_python() { # statements about d, a JSON file; nothing is checked where there is no python3
    command -v python3 >/dev/null || return 0
    python3 -c "import json, sys
d = json.load(open(sys.argv[1]))
$1" "$2" || fail "$2 is not what it should be: $(cat "$2")"
}

refuses() { # text in the message, flags...
    text=$1
    shift
    set +e
    "$SPILLWAY" bench --model $rill "$@" >"$dir/out" 2>"$dir/err"
    code=$?
    set -e
    [ "$code" -eq 2 ] || fail "bench $* exits with $code, not 2"
    grep -q -- "$text" "$dir/err" || fail "bench $* does not say '$text': $(cat "$dir/err")"
}

# Table, JSON, picture and profile in one run over two thread counts.
bench --prefill 8,70 --depth 0,65 --batch 1,2 --threads 1,2 --chunked-prefill-size 64 --profile \
    --json "$dir/b.json" --plot "$dir/b.svg"
[ "$(grep -c '^prefill [0-9]* .*%$' "$dir/out")" = 4 ] || fail "not two prompts at two thread counts"
[ "$(grep -c '^decode [0-9]* x, .*%$' "$dir/out")" = 8 ] || fail "not four generations, twice"
says '^bounds   2 threads: memory [0-9.]* GB/s'
says '^load     [0-9.]* s ([0-9.]* GB/s'
says '^MB per token  *dense weights'
says '^lm_head  *linear '
says '^step .* 100.0 %$'
check_python '
assert [c["kind"] for c in d["cases"]] == (["prefill"] * 2 + ["decode"] * 4) * 2
assert [c["threads"] for c in d["cases"]] == [1] * 6 + [2] * 6
for c in d["cases"]:
    assert 0 < c["least"] <= c["low_quartile"] <= c["tok_s"] <= c["high_quartile"] <= c["most"]
    assert abs(c["reached"] - c["tok_s"] / c["bound_tok_s"]) < 1e-9
    assert abs(sum(c["bytes_by_class"].values()) - c["bytes_per_token"]) < 1e-3
    assert c["bound_by"] in ("memory", "cache", "arithmetic")
    assert 4 <= c["experts_touched"] <= 16
assert all(b["memory_gb_s"] > 0 and b["f32_gflop_s"] > 0 for b in d["bounds"])
assert 0.5 < sum(p["share"] for p in d["profile"]) <= 1
import xml.dom.minidom
svg = xml.dom.minidom.parse(sys.argv[1][:-5] + ".svg")
assert len(svg.getElementsByTagName("rect")) == 3 + 2 * len(d["cases"])' "$dir/b.json"

# JSON alone on standard output, made-up routing, quantised dense matrices.
bench --prefill none --depth 0 --batch 1 --routing local --dense-quant int8 --json -
check_python 'assert d["routing"] == "local" and d["dense_quant"] == "int8"
assert len(d["cases"]) == 1 and d["cases"][0]["experts_touched"] == 4' "$dir/out"
bench --prefill 8 --batch none --routing uniform --cpu-activations f32
says 'routing: uniform'
says 'quantised matrices read f32'

# Quality: a reference and four settings.
"$SPILLWAY" bench --model $rill --quality --quality-tokens 100 >"$dir/out" 2>"$dir/err" ||
    fail "--quality: $(cat "$dir/err")"
says '^f32  *none .* 100.00 %'
[ "$(grep -cE '^(f32|bf16|int8) ' "$dir/out")" = 5 ] || fail "--quality prints other than five settings"
echo "Water runs over the spillway when the reservoir is full." >"$dir/text"
"$SPILLWAY" bench --model $rill --quality --text "$dir/text" --json - >"$dir/out" 2>"$dir/err" ||
    fail "--quality --text: $(cat "$dir/err")"
check_python 'assert len(d["settings"]) == 5' "$dir/out"

refuses 'must be in' --batch 0
refuses 'is not a' --prefill 12x
refuses 'nothing to measure' --prefill none --batch none
refuses 'goes with --quality' --text "$dir/text"
refuses 'exclude each other' --quality --text a --rows b
refuses 'one of' --routing random
refuses 'go with --offload' --gpu-memory-gb 8,12
refuses 'must be in' --gpu-memory-gb -1
refuses 'goes without' --offload --profile
set +e
"$SPILLWAY" bench --model $rill --offload --device cpu >"$dir/out" 2>"$dir/err"
[ $? -eq 4 ] || fail "--offload without a card does not exit with 4"
set -e
echo "passed"
