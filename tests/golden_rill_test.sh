#!/bin/sh
# label: golden
# The demo model against its recorded answers: 16 greedy answers identical, and the mean loss within
# 0.0005 in float32, within 0.01 in half precision.
set -eu

run() { # dtype, limit of the loss's difference
    out=$("$SPILLWAY" eval --model models/rill --golden models/rill/golden.json --dtype "$1")
    echo "$1: $out"
    echo "$out" | grep -qx '16 of 16 greedy answers identical' || {
        echo "FAILED: $1: answers differ"
        exit 1
    }
    echo "$out" | awk -v limit="$2" '
        /^mean loss/ { d = $NF; if (d < 0) d = -d; ok = d <= limit; seen = 1 }
        END { exit !(seen && ok) }' || {
        echo "FAILED: $1: the loss differs by more than $2"
        exit 1
    }
}

run float32 0.0005
run bfloat16 0.01
run float16 0.01
echo "passed"
