#!/bin/sh
# `spillway make-model`: the list, a small model from flags to an answer, refusals, and what a stop
# signal leaves behind.
set -u
: "${SPILLWAY:?the binary to test}"
work=$(mktemp -d /tmp/spillway-make-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $1"
    sed 's/^/    /' "$work/out" "$work/err" 2>/dev/null | head -30
    failures=$((failures + 1))
}

# try CODE ARGUMENTS...: runs the program into out and err.
try() {
    want=$1
    shift
    "$SPILLWAY" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    [ "$code" = "$want" ] || fail "exit code $code instead of $want: $*"
}
says() { grep -q -- "$1" "$work/out" "$work/err" || fail "does not say '$1'"; }

try 0 make-model --list
says '^qwen3.5-35b-a3b  *40  *2048  *256  *34.66  *69.3  *21.8  (default)'
says '^qwen3.5-27b  *64 .* 53.8  *28.5$'

# Refusals: 2, with the flag and what would do.
try 2 make-model --shape qwen3.5-4b
says '--out DIR'
try 2 make-model --out "$work/m"
says '--shape NAME'
try 2 make-model --shape qwen3.5-35b --out "$work/m"
says "did you mean 'qwen3.5-35b-a3b'"
try 2 make-model --shape qwen3.5-4b --experts 8 --out "$work/m"
says 'is dense'
try 2 make-model --shape qwen3.5-4b --vocab 500 --out "$work/m"
says '--vocab 500 is not in 1024'
try 2 make-model --shape qwen3-next-80b-a3b --vision --out "$work/m"
says 'no vision tower'
try 2 make-model --shape qwen3.5-4b --mtp --no-mtp --out "$work/m"
says 'exclude each other'
try 2 make-model --shape qwen3.5-4b --shard-gb 0 --out "$work/m"
says 'shard-gb'
try 1 make-model --shape qwen3.5-4b --out "$work/no/such"
says 'No such file'
[ -e "$work/m" ] && fail 'a refused command made the folder'

# A small one: shards, every matrix sound, and a hundred tokens that are text.
small="--shape qwen3.5-0.8b --layers 4 --vocab 2048 --format gptq-int4 --scales bf16 --mtp"
try 0 make-model $small --shard-gb 0.02 --out "$work/m"
says '^writing qwen3.5-0.8b'
says 'tensors, 0.1. GB in [0-9]* files'
try 0 inspect "$work/m" --check
says 'all matrices checked'
says 'gptq scales bfloat16'
says '12 matrices'
try 0 run --model "$work/m" --raw --max-tokens 100 --seed 1 --temperature 1 'Once upon a time'
says '100 tokens'
[ -s "$work/out" ] || fail 'no answer'
cp "$work/out" "$work/first"
try 0 tokenize --model "$work/m" '<|im_start|>user'
says 1773

# The same flags give the same model, and only --force writes over one.
try 2 make-model $small --shard-gb 0.02 --out "$work/m"
says 'holds a model already'
cp -r "$work/m" "$work/copy"
try 0 make-model $small --shard-gb 0.02 --out "$work/m" --threads 3 --force
diff -r "$work/m" "$work/copy" >"$work/out" || fail 'another thread count, other files'
rm -rf "$work/copy"

# A stop signal: exit code 1, and no files. (The whole would take 22 GB; it is stopped at once.)
if [ "$(df -Pk "$work" | awk 'NR == 2 { print $4 }')" -gt 30000000 ]; then
    "$SPILLWAY" make-model --shape qwen3.5-35b-a3b --out "$work/large" \
        >"$work/out" 2>"$work/err" &
    pid=$!
    tries=0
    while ! ls "$work"/large/*.tmp-* >"$work/ls" 2>&1 && [ $tries -lt 200 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
    kill -TERM "$pid"
    wait "$pid"
    code=$?
    [ "$code" = 1 ] || fail "exit code $code instead of 1 after a stop signal"
    says 'stopped; what was written of'
    [ -e "$work/large" ] && fail 'a stopped command left its folder'
fi

[ "$failures" -eq 0 ] && echo "make-model: all cases passed"
exit "$failures"
