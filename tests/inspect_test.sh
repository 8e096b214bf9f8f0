#!/bin/sh
# `spillway inspect`: print-outs, exit codes and messages, on the checkpoints of the repository.
set -u
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# expect CODE TEXT ARGUMENTS...: the exit code, and TEXT somewhere in both outputs together.
expect() {
    code=$1 text=$2
    shift 2
    HF_HUB_CACHE="$work/hub" HF_HOME='' XDG_CACHE_HOME='' "$SPILLWAY" inspect "$@" >"$work/out" 2>&1
    got=$?
    if [ "$got" -ne "$code" ] || ! grep -qF -- "$text" "$work/out"; then
        echo "inspect $*: exit code $got (expected $code), expected text: $text"
        cat "$work/out"
        failures=$((failures + 1))
    fi
}

expect 0 '8: 6 linear attention, 2 full attention' models/rill
expect 0 '8: 6 linear attention, 2 full attention' --model-path models/rill
expect 0 'mtp.norm.weight' models/rill --tensors
expect 0 '"bits": 4' models/rill --json
expect 0 'all matrices checked' tests/golden/tiny-qwen3_5-moe-gptq-int4-actorder --check
expect 0 'dense, width 256' tests/golden/tiny-qwen3_5-dense
expect 0 '2 per token' tests/golden/tiny-qwen3_next
expect 0 'yarn x4 over 8192 positions' models/rill --json-model-override-args \
    '{"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":8192}}'
expect 0 'Examples' --help
expect 2 'no model given'
expect 2 'json-model-override-args' models/rill --json-model-override-args '{'
expect 2 'unknown' models/rill --tensor-list
expect 3 'huggingface-cli download org/name' org/name
expect 3 "$work/hub/models--org--name" org/name
expect 3 "is a file; give the model's folder" models/rill/config.json
expect 3 "there is no folder '/no/such'" /no/such

# A name of a hub cache.
snapshot="$work/hub/models--org--name/snapshots/0a1b"
mkdir -p "$snapshot" "$work/hub/models--org--name/refs"
printf 0a1b >"$work/hub/models--org--name/refs/main"
for file in config.json model.safetensors tokenizer.json; do
    ln -s "$PWD/tests/golden/tiny-qwen3_5-dense/$file" "$snapshot/$file"
done
expect 0 "$snapshot" org/name
expect 0 "$snapshot" org/name@0a1b
expect 3 'revision' org/name@v2

# One thing wrong.
sed 's/qwen3_5_text/llama/' tests/golden/tiny-qwen3_5-dense/config.json >"$work/config.json"
rm "$snapshot/config.json"
expect 3 'has no config.json' org/name
cp "$work/config.json" "$snapshot/config.json"
expect 3 "model_type 'llama' is not supported" org/name
expect 3 'embedding' org/name
rm "$snapshot/model.safetensors"
head -c 100000 tests/golden/tiny-qwen3_5-dense/model.safetensors >"$snapshot/model.safetensors"
expect 3 "model.safetensors': tensor '" org/name

[ "$failures" -eq 0 ] && echo "inspect: all cases passed"
exit "$failures"
