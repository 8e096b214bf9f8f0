#!/bin/sh
# `spillway render` from outside: prompts of the demo model, runs, forms of input, errors.
set -u
: "${SPILLWAY:?the binary to test}"
work=$(mktemp -d /tmp/spillway-render-XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
rill=models/rill

fail() {
    echo "FAILED: $1"
    sed 's/^/    /' "$work/out" "$work/err" 2>/dev/null | head -30
    failures=$((failures + 1))
}
# try CODE ARGUMENTS...: the standard input is $work/in.
try() {
    want=$1
    shift
    "$SPILLWAY" render "$@" <"$work/in" >"$work/out" 2>"$work/err"
    code=$?
    [ "$code" = "$want" ] || fail "exit code $code instead of $want: render $*"
}
says() { grep -qF -- "$1" "$work/out" "$work/err" || fail "does not say '$1'"; }
prints() {
    printf "$1" >"$work/want"
    cmp -s "$work/want" "$work/out" || fail "prints something else than '$1'"
}

echo '[{"role":"user","content":"Hi <|im_end|>"}]' >"$work/in"
try 0 --model $rill
prints '<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n'
try 0 --model $rill --no-generation-prompt
prints '<|im_start|>user\nHi <|im_end|><|im_end|>\n'
try 0 --model $rill --kwargs '{"enable_thinking": false}'
prints '<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
try 0 --model $rill --show-runs
says 'template "<|im_start|>user\n"'
says 'request  "Hi <|im_end|>"'

# A whole request as input; tools from a file win.
cat >"$work/request.json" <<'JSON'
{"model": "x", "messages": [{"role": "developer", "content": "One."}, {"role": "system", "content": "Two."},
 {"role": "user", "content": [{"type": "text", "text": "Q"}]}],
 "tools": [{"type": "function", "function": {"name": "from_request"}}],
 "chat_template_kwargs": {"enable_thinking": false}}
JSON
echo '[{"type": "function", "function": {"name": "from_file", "x": 1e2}}]' >"$work/tools.json"
try 0 --model $rill --messages "$work/request.json"
says '{"type": "function", "function": {"name": "from_request"}}'
says 'One.'
says '</think>'
try 0 --model $rill --messages "$work/request.json" --tools "$work/tools.json"
says '{"type": "function", "function": {"name": "from_file", "x": 100.0}}'

# A template of one's own, without a model.
echo '{{ messages[0].content }} at {{ strftime_now("%Y") }}, {{ word | upper }}' >"$work/own.jinja"
TZ=UTC try 0 --template "$work/own.jinja" --time 1000000000 --kwargs '{"word": "x"}'
prints 'Hi <|im_end|> at 2001, X'

# Faults: in the usage, the messages, the template, the files.
try 2
says 'no template'
echo '[{"role":"user","content":"a"},{"role":"system","content":"late"}]' >"$work/in"
try 1 --model $rill
says 'messages[1]: The system message must come first'
echo '[{"role":"user","content":[{"type":"image_url"}]}]' >"$work/in"
try 1 --model $rill
says 'messages[0].content[0]'
says 'text only'
try 1 --model $rill --as-given
says 'Rill reads text only'
echo '[]' >"$work/in"
try 1 --model $rill
says 'messages is empty'
echo 'x' >"$work/in"
try 3 --model $rill
says 'invalid JSON'
echo '{% if %}' >"$work/own.jinja"
try 3 --template "$work/own.jinja"
says 'line 1'
try 3 --template "$work/missing.jinja"
says 'missing.jinja'

# Many at once: a failed line is an answer too.
cat >"$work/in" <<'JSON'
{"template": "{{ a }}", "context": {"a": "é"}}
{"template": "{{ a.b.c }}", "context": {"a": {}}}
{"template": "{% nope %}"}
nonsense
{"context": {"a": 1}}
JSON
try 0 --batch -
says '{"text":"é"}'
says '"code":"bad_request"'
says '"code":"format"'
[ "$(wc -l <"$work/out")" = 5 ] || fail "not one answer for each line"

[ "$failures" = 0 ] && echo "render: all checks passed"
exit "$failures"
