#!/bin/sh
# The program from outside: exit codes, messages, help, the manual page, run and chat in a pipe, and
# a launch line of another server, word for word, with the request that goes with it.
set -u
: "${SPILLWAY:?the binary to test}"
work=$(mktemp -d /tmp/spillway-cli-XXXXXX) || exit 1
server=""
cleanup() {
    [ -n "$server" ] && kill -9 "$server" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
failures=0
rill=models/rill

fail() {
    echo "FAILED: $1"
    sed 's/^/    /' "$work/out" "$work/err" 2>/dev/null | head -30
    failures=$((failures + 1))
}

# Before a command in the background: it may open its files later than the first look at them.
fresh_output() { : >"$work/out" && : >"$work/err"; }

# try CODE COMMAND...: runs it into out and err.
try() {
    want=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    [ "$code" = "$want" ] || fail "exit code $code instead of $want: $*"
}
says() { grep -q -- "$1" "$work/out" "$work/err" || fail "does not say '$1'"; }
silent_on_stdout() { [ -s "$work/out" ] && fail "prints on standard output"; }

# Usage: 2, with the nearest name.
try 2 "$SPILLWAY"
try 2 "$SPILLWAY" srve
says "did you mean 'serve'"
try 2 "$SPILLWAY" serve --prot 1
says "did you mean '--port'"
says "^usage: spillway serve"
silent_on_stdout
try 2 "$SPILLWAY" serve --dtype float61 --model-path $rill
says "did you mean 'float16'"
try 2 "$SPILLWAY" serve
says "no model"
try 2 "$SPILLWAY" serve --model-path $rill --tp-size 2
says "tp-size 2"
try 2 "$SPILLWAY" serve --model-path $rill --quantization awq --port 0
says "awq"
says "gptq"
try 2 "$SPILLWAY" serve --model-path $rill --context-length 9000 --port 0
says "9000"
says "8192"
try 2 "$SPILLWAY" serve --model-path $rill --host 0.0.0.0 --port 0
says "API key"
try 2 env SPILLWAY_PORT=tcp://10.0.0.1:80 "$SPILLWAY" serve --model-path $rill
says "SPILLWAY_PORT"

# Models: 3, with the name.
try 3 "$SPILLWAY" serve --port 0 --model /nonexistent/model-7
says "/nonexistent/model-7"
try 3 "$SPILLWAY" run --model /nonexistent/model-7 hello
says "/nonexistent/model-7"
try 3 "$SPILLWAY" chat --model /nonexistent/model-7
says "/nonexistent/model-7"
mkdir "$work/broken" && echo '{' >"$work/broken/config.json"
try 3 "$SPILLWAY" run --model "$work/broken" hello
says "config.json"

# Memory: 4, with the numbers.
try 4 "$SPILLWAY" serve --model-path $rill --port 0 --max-total-tokens 268435456 \
    --max-running-requests 1024 --mamba-ssm-dtype float32
says "are available"

# plan: the table without loading, for a card that is not here and for this CPU; refusals with numbers that
# work.
try 0 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --no-measure --gpu-expert-slots 25% \
    --cpu-offload-gb auto --expert-miss fetch --dtype float16 --kv-cache-dtype fp8_e4m3
says "experts: 32 of 128 have a slot (25.0%), 4 of 16 in each of 8 layers"
says "expert-miss  *fetch  *fetch"
says "decode at 1024, local"
says "(assumed)"
try 0 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --no-measure --offload-group-size 4 \
    --offload-num-in-group 1 --gpu-expert-slots 8 --json
python3 -c 'import json, sys
plan = json.load(open(sys.argv[1]))
experts = plan["experts"]
assert experts["slots"] == 8 and experts["layers_overflowing"] == 2, experts
assert sum(plan["bytes"].values()) == plan["planned_bytes"] <= plan["memory_bytes"], plan
assert len(plan["bounds"]["rows"]) == 5, plan["bounds"]
assert plan["settings"]["gpu_expert_slots"] == "8 of 32 (25.0%)", plan["settings"]' "$work/out" ||
    fail "plan --json"
try 0 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --no-measure --gpu-expert-slots 8 \
    --offload-host file --offload-folder /large
says "routed experts  *- *- *0.00[0-9] GiB"
says "file in /large: 0.0[0-9] GiB for experts"
says "a file in '/large': the CPU computes those without a slot"
try 2 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --gpu-expert-slots 8 --expert-miss fetch \
    --offload-host file
says "^spillway: .*--offload-host file: --expert-miss fetch"
try 0 "$SPILLWAY" plan $rill --device cpu --no-measure --host-bandwidth 20 --cpu-offload-gb 3
says "from host memory at 20.0 GB/s (given)"
try 4 "$SPILLWAY" plan $rill --gpu-memory-gb 0.65 --no-measure --device cuda
says "it fits with --gpu-memory-gb 0.[7-9]"
says "^does not fit"
try 2 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --gpu-expert-slots 120%
says "120%"
try 2 "$SPILLWAY" plan $rill --gpu-memory-gb 1 --offload-group-size 2 --offload-num-in-group 3
says "offload-num-in-group"
try 2 "$SPILLWAY" plan $rill --cpu-offload-gb some
says "'some' is neither auto nor"
try 2 "$SPILLWAY" plan
says "no model"
try 3 "$SPILLWAY" plan /nonexistent/model-7
says "/nonexistent/model-7"

# Help of everything: 0, with examples.
try 0 "$SPILLWAY" --help
says "^Examples"
commands=$(sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p' "$work/out" | grep -v '^spillway$')
for command in serve chat run tokenize render eval bench plan inspect; do
    echo "$commands" | grep -qx "$command" || fail "--help does not list '$command'"
    try 0 "$SPILLWAY" "$command" --help
    says "^Examples"
    says "^usage: spillway $command"
    try 0 "$SPILLWAY" help "$command"
    try 2 "$SPILLWAY" "$command" --no-such-flag-at-all
done
try 0 "$SPILLWAY" --version
says "^spillway [0-9]"

# The manual page is what the tables say.
try 0 "$SPILLWAY" help-man
cmp -s "$work/out" docs/spillway.1 ||
    fail "docs/spillway.1 is old: spillway help-man > docs/spillway.1"

# run: the answer alone on standard output, the same twice with temperature 0.
try 0 "$SPILLWAY" run --model $rill --no-thinking --temperature 0 --max-tokens 12 Hello
[ -s "$work/out" ] || fail "run printed no answer"
says "tok"
cp "$work/out" "$work/first"
echo Hello | "$SPILLWAY" run --model $rill --no-thinking --temperature 0 --max-tokens 12 - \
    >"$work/out" 2>"$work/err" || fail "run from standard input"
cmp -s "$work/first" "$work/out" || fail "run gives another answer from standard input"
try 0 "$SPILLWAY" run --model $rill --raw --temperature 0 --max-tokens 4 --quiet "One two three"
[ -s "$work/err" ] && fail "run --quiet prints on standard error"
try 2 "$SPILLWAY" run --model $rill --temperature -1 Hello
try 1 "$SPILLWAY" run --model $rill --context-length 64 "$(seq 1 200 | tr '\n' ' ')"
says "64"

# chat in a pipe: one message per line, the demo model by default, commands work.
printf 'Hello\n\n/nothink\n/save %s/saved.json\n/clear\nHello\n/nonsense\n/exit\nnever\n' "$work" |
    "$SPILLWAY" chat --temperature 0 --no-thinking --max-tokens 8 >"$work/out" 2>"$work/err" ||
    fail "chat in a pipe"
[ "$(grep -c 'tok' "$work/err")" = 2 ] || fail "chat did not answer twice"
says "no such command"
grep -q '"role": "assistant"' "$work/saved.json" || fail "chat did not save the conversation"
"$SPILLWAY" chat </dev/null >"$work/out" 2>"$work/err" || fail "chat without any input"

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    n=$(($1 * 10))
    shift
    while [ $n -gt 0 ]; do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
        n=$((n - 1))
    done
    return 1
}
ready() { grep -q "fired up and ready to roll" "$work/err"; }
gone() { ! kill -0 "$server" 2>/dev/null; }

# serve, as somebody who comes from another server types it; only the port is a free one.
fresh_output
"$SPILLWAY" serve --model-path $rill --quantization gptq_marlin --dtype float16 \
    --attention-backend triton --cpu-offload-gb 12 --offload-group-size 1 \
    --mem-fraction-static 0.80 --kv-cache-dtype fp8_e4m3 --disable-cuda-graph \
    --skip-server-warmup --trust-remote-code --port 0 >"$work/out" 2>"$work/err" &
server=$!
if wait_for 120 ready; then
    for flag in attention-backend cpu-offload-gb offload-group-size mem-fraction-static \
        disable-cuda-graph skip-server-warmup trust-remote-code; do
        [ "$(grep -cE -- "$flag[: ].*no effect" "$work/err")" = 1 ] ||
            fail "--$flag is not noted with one line"
    done
    says "self-test passed"
    port=$(sed -n 's|.*ready to roll! http://[^:]*:\([0-9]*\).*|\1|p' "$work/err")
    curl -s -m 60 "http://localhost:$port/v1/chat/completions" \
        -H 'Content-Type: application/json' \
        -d '{"model":"default","messages":[{"role":"user","content":"Hello"}],"max_tokens":50}' \
        >"$work/answer" || fail "the request"
    grep -q '"finish_reason"' "$work/answer" || fail "no answer: $(cat "$work/answer")"
    curl -s -m 10 "http://localhost:$port/health" -o /dev/null -w '%{http_code}' | grep -q 200 ||
        fail "/health is not 200"
    # The port is taken: said at once, before anything is loaded.
    try 1 "$SPILLWAY" serve --model-path $rill --port "$port"
    says "$port"
    grep -q "weights" "$work/err" && fail "the second server loaded before it bound"
    cp "$work/err" "$work/second"
    kill -TERM "$server"
    wait "$server"
    code=$?
    server=""
    [ $code = 0 ] || fail "exit code $code after SIGTERM"
else
    fail "the server did not start"
fi

# SIGTERM while loading or right after: 0, soon.
fresh_output
"$SPILLWAY" serve --model-path $rill --port 0 >"$work/out" 2>"$work/err" &
server=$!
wait_for 20 grep -q "listening" "$work/err"
kill -TERM "$server"
wait "$server"
code=$?
server=""
[ $code = 0 ] || fail "exit code $code after SIGTERM while loading"

# A request in flight when SIGTERM comes: it gets the drain time, no more; exit code 0.
fresh_output
"$SPILLWAY" serve --model-path $rill --port 0 --shutdown-timeout 1 >"$work/out" 2>"$work/err" &
server=$!
if wait_for 120 ready; then
    port=$(sed -n 's|.*ready to roll! http://[^:]*:\([0-9]*\).*|\1|p' "$work/err")
    curl -s -N -m 60 "http://localhost:$port/v1/completions" -H 'Content-Type: application/json' \
        -d '{"prompt":"One","max_tokens":6000,"ignore_eos":true,"stream":true}' >"$work/stream" &
    client=$!
    wait_for 30 test -s "$work/stream"
    kill -TERM "$server"
    wait_for 8 gone || fail "does not stop when the drain time is over"
    wait "$server"
    code=$?
    [ $code = 0 ] || fail "exit code $code after draining"
    wait $client
    grep -q '^data: ' "$work/stream" || fail "nothing was streamed"
else
    fail "the server did not start"
fi
server=""

# A file of the model is cut while it is served: code 70 and a message, or an answer from what was
# read already; never a crash.
cp -r $rill "$work/cut"
chmod -R u+w "$work/cut"
fresh_output
"$SPILLWAY" serve --model-path "$work/cut" --port 0 >"$work/out" 2>"$work/err" &
server=$!
if wait_for 120 ready; then
    port=$(sed -n 's|.*ready to roll! http://[^:]*:\([0-9]*\).*|\1|p' "$work/err")
    for shard in "$work"/cut/*.safetensors; do : >"$shard"; done
    curl -s -m 60 "http://localhost:$port/v1/completions" -H 'Content-Type: application/json' \
        -d '{"prompt":"One","max_tokens":4}' >"$work/answer"
    if gone || ! grep -q finish_reason "$work/answer"; then
        wait_for 5 gone || fail "neither answers nor stops when a model file was cut"
        wait "$server"
        code=$?
        [ $code = 70 ] || fail "exit code $code instead of 70 when a model file was cut"
        says "SIGBUS"
    else
        kill -TERM "$server"
        wait "$server"
    fi
else
    fail "the server did not start"
fi
server=""

# A step that takes longer than the watchdog allows: code 72 and a line that says which. Thousands of
# tokens take far longer than a millisecond; which of the requests is the last does not matter.
fresh_output
"$SPILLWAY" serve --model-path $rill --port 0 --watchdog-timeout 0.001 >"$work/out" 2>"$work/err" &
server=$!
if wait_for 120 ready; then
    port=$(sed -n 's|.*ready to roll! http://[^:]*:\([0-9]*\).*|\1|p' "$work/err")
    printf '{"prompt":"%s","max_tokens":64,"ignore_eos":true}' "$(seq 1 1500 | tr '\n' ' ')" \
        >"$work/long"
    n=0
    while [ $n -lt 50 ] && ! gone; do
        curl -s -m 60 "http://localhost:$port/v1/completions" \
            -H 'Content-Type: application/json' -d @"$work/long" >"$work/answer"
        [ ! -s "$work/answer" ] || grep -q -e finish_reason -e shutting_down -e draining \
            "$work/answer" || fail "while the watchdog ends the program: $(cat "$work/answer")"
        n=$((n + 1))
    done
    wait_for 10 gone || fail "the watchdog did not end the program"
    kill -9 "$server" 2>/dev/null
    wait "$server"
    code=$?
    [ $code = 72 ] || fail "exit code $code instead of 72 when a step was too long"
    says "watchdog: step [0-9]* of the model"
else
    fail "the server did not start"
fi
server=""

# A configuration file, and flags without a command.
cat >"$work/serve.yaml" <<YAML
model_path: $rill
port: 0
max-running-requests: 2
context-length: 1Ki
log-format: json
YAML
fresh_output
"$SPILLWAY" --config "$work/serve.yaml" >"$work/out" 2>"$work/err" &
server=$!
if wait_for 120 ready; then
    says '"msg":".*max-running-requests .*2'
    says '"msg":".*context-length .*1024'
    kill -INT "$server"
    wait_for 15 gone || fail "does not stop after SIGINT"
else
    fail "the server did not start from its configuration file"
fi
wait "$server" 2>/dev/null
server=""

if [ $failures -gt 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "all passed"
