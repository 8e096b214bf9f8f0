#!/bin/sh
# label: oracle
# label: nosan
# Compares `spillway tokenize` with the reference tokenizer; see tests/oracle/tokenizer_oracle.mjs.
set -eu

dir=$(dirname "$0")/oracle
if ! command -v node >/dev/null 2>&1; then
    echo "skipped: node is not installed"
    exit 77
fi
if [ ! -d "$dir/node_modules/tokenizers" ]; then
    echo "skipped: no oracle packages; run 'npm ci' in tests/oracle"
    exit 77
fi
: "${SPILLWAY:?is not set to the program}"
SPILLWAY=$(realpath "$SPILLWAY")
export SPILLWAY
exec node "$dir/tokenizer_oracle.mjs"
