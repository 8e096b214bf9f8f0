#!/bin/sh
# puppet_test.sh - the scripted model says its script: through loader, tokenizer, sampler, detokeniser.
# Needs python3 (for puppet.py).
set -eu

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# say PROMPT FLAGS...: what the model in $dir/model answers, into $dir/out
say() {
    printf '%b' "$1" >"$dir/prompt"
    shift
    "$SPILLWAY" run --model "$dir/model" --raw --quiet "$@" - <"$dir/prompt" >"$dir/out"
}

# expect NAME TEXT: TEXT in printf's %b notation; run ends every answer with a newline
expect() {
    printf '%b' "$2" >"$dir/want"
    if ! cmp -s "$dir/want" "$dir/out"; then
        echo "$1: expected"
        od -c "$dir/want"
        echo "got"
        od -c "$dir/out"
        exit 1
    fi
}

puppet() {
    python3 "$here/puppet.py" --out "$dir/model" "$@" >/dev/null
}

puppet --prompt-tail '</think>\n\n' --answer 'Hello, hello! <b>aa aa</b>\nGrüße 你好 🙂'
for temperature in 0 1; do
    say '<think>\n\n</think>\n\n' --temperature $temperature
    expect "text at temperature $temperature" 'Hello, hello! <b>aa aa</b>\nGrüße 你好 🙂\n'
done
say '<think>\n\n</think>\n\n' --temperature 0 --max-tokens 1
[ "$(wc -c <"$dir/out")" -lt 8 ] || { echo "one token is too long"; exit 1; }
say 'nothing is scripted for this' --temperature 0
expect "no script" ''

# Single bytes: a character in four tokens, a lone continuation byte, a cut character at the end.
puppet --prompt-tail '!' --exact --answer 'a' '\xF0' '\x9F' '\x99' '\x82' 'b' '\x80' 'c' '\xE4' '\xBD'
say 'Go!' --temperature 0
expect "bytes" 'a\0360\0237\0231\0202b\0357\0277\0275c\0357\0277\0275\n'

puppet --prompt-tail '!' --exact --answer 'x' 'yy' 'z' --cycle
say 'Go!' --temperature 0 --max-tokens 7
expect "cycle" 'xyyzxyyzx\n'

puppet --prompt-tail '!' --exact --answer 'x' 'yy' 'z' --nan 'yy'
if say 'Go!' --temperature 0 2>"$dir/err"; then
    echo "a NaN went unnoticed"
    exit 1
fi
grep -q 'layer 0' "$dir/err" || { cat "$dir/err"; exit 1; }

# What cannot be scripted is refused.
if python3 "$here/puppet.py" --out "$dir/bad" --ids --prompt-tail 5 --answer 6 7 6 2>"$dir/err"; then
    echo "a repeated piece was accepted"
    exit 1
fi
grep -q 'occurs twice' "$dir/err"
echo "puppet: all scripts answered"
