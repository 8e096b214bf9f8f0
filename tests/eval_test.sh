#!/bin/sh
# The eval command from outside: what it writes, that cuts do not matter, how it refuses.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=tests/golden/tiny-qwen3_5-moe
inputs=$model/reference.safetensors

fail() {
    echo "FAILED: $1"
    exit 1
}

expect_code() { # code, text in the message, command...
    want=$1 text=$2
    shift 2
    set +e
    "$@" >"$dir/out" 2>"$dir/err"
    code=$?
    set -e
    [ "$code" -eq "$want" ] || fail "'$*' exits with $code, not $want: $(cat "$dir/err")"
    grep -q -- "$text" "$dir/err" || fail "'$*' does not say '$text': $(cat "$dir/err")"
}

header() { # the JSON header of a safetensors file
    dd if="$1" bs=1 skip=8 count=20000 2>/dev/null | tr -d '\0' | sed 's/}}.*/}}/'
}

"$SPILLWAY" eval --model $model --inputs $inputs --outputs "$dir/a" --greedy 4 >"$dir/out"
grep -q '^rand65: 65 tokens, 4 more' "$dir/out" || fail "no line for rand65"
header "$dir/a" >"$dir/header"
for want in '"rand65.logits":{"dtype":"F32","shape":\[65,512\]' \
    '"short.hidden.4":{"dtype":"F32","shape":\[4,128\]' \
    '"short.conv_states.2":{"dtype":"F32","shape":\[256,3\]' \
    '"rand200.recurrent_states.0":{"dtype":"F32","shape":\[4,32,32\]' \
    '"rand200.keys.3":{"dtype":"F32","shape":\[2,200,64\]' \
    '"one.greedy":{"dtype":"I32","shape":\[4\]'; do
    tr -d ' ' <"$dir/header" | grep -q "$want" || fail "the output lacks $want"
done

# The same work twice gives the same file, whatever the thread count.
"$SPILLWAY" eval --model $model --inputs $inputs --outputs "$dir/b" --greedy 4 --threads 1 >/dev/null
cmp "$dir/a" "$dir/b" || fail "the thread count changes the numbers"

expect_code 2 'nothing to do' "$SPILLWAY" eval --model $model
expect_code 2 'go together' "$SPILLWAY" eval --model $model --inputs $inputs
expect_code 3 'no-such-file' "$SPILLWAY" eval --model $model --inputs "$dir/no-such-file" --outputs "$dir/c"
expect_code 3 'input_ids' "$SPILLWAY" eval --model $model --inputs models/rill/model-00001-of-00002.safetensors \
    --outputs "$dir/c"
[ ! -e "$dir/c" ] || fail "a refused run left a file"
echo "passed"
