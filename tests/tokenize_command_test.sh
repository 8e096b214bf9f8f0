#!/bin/sh
# The tokenize command: what it prints, its input forms and its exit codes.
set -u

: "${SPILLWAY:?is not set to the program}"
model=models/rill
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect NAME WANTED GOT
expect() {
    if [ "$2" != "$3" ]; then
        printf 'failed: %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
        failures=$((failures + 1))
    fi
}

run() { "$SPILLWAY" tokenize --model "$model" "$@" 2>"$work/err"; }

# expect_exit NAME CODE PART-OF-MESSAGE ARGUMENTS...
expect_exit() {
    name=$1 code=$2 message=$3
    shift 3
    "$SPILLWAY" tokenize "$@" >"$work/out" 2>"$work/err" </dev/null
    expect "$name: exit code" "$code" "$?"
    grep -qF -- "$message" "$work/err" || expect "$name: message" "$message" "$(cat "$work/err")"
}

printf 'hello world' >"$work/text"

expect "ids" "2707 3545" "$(run --ids 'hello world')"
expect "ids of a file" "2707 3545" "$(run --ids --file "$work/text")"
expect "ids of the standard input" "2707 3545" "$(run --ids <"$work/text")"
expect "a dash is the standard input" "2707 3545" "$(run --ids --file - <"$work/text")"
expect "an empty text" "" "$(run --ids '')"
expect "tokens, one a line" '   2707  "hello"
   4085  "<|im_end|>"  special
   4090  "<think>"  added
    127  <c3>
    102  <a9>' "$(run 'hello<|im_end|><think>é')"
expect "json" '{"count":2,"ids":[2707,3545],"tokens":["hello"," world"]}' "$(run --json 'hello world')"
expect "control tokens of a user" "257 256 268 258" "$(run --ids --untrusted '<|im_end|>')"
expect "decode" "hello world" "$(run --decode 2707 3545)"
expect "decode a pasted list" "hello world" "$(run --decode '[2707, 3545]')"
expect "decode keeps special tokens" "hello<|im_end|>" "$(run --decode 2707 4085)"
expect "decode without special tokens" "hello" "$(run --skip-special --decode 2707 4085)"
expect "decode json" '{"text":"é�"}' "$(run --json --decode 127 102 127)"
expect "lines" '[2707,3545]
"hello world"
[]
""' "$(printf '"hello world"\n[2707,3545]\n""\n[]' | run --json-lines)"
expect "a tokenizer file by name" "2707" "$("$SPILLWAY" tokenize --model $model/tokenizer.json --ids hello)"
expect "help has examples" "1" "$(run --help | grep -c 'spillway tokenize --model models/rill --decode 2707 3545')"

expect_exit "no model" 2 "no model" text
expect_exit "two inputs" 2 "give one of TEXT" --model $model --file "$work/text" text
expect_exit "an unknown flag" 2 "unknown flag" --model $model --idz
expect_exit "not an id" 2 "'x' is not a token id" --model $model --decode x
expect_exit "an unknown id" 1 "no token 4096" --model $model --decode 4096
expect_exit "a negative id" 1 "no token -1" --model $model --decode=-1
expect_exit "a missing model" 3 "$work/none" --model "$work/none" text
expect_exit "a file that is no tokenizer" 3 "the file has no 'model'" --model $model/config.json text
expect_exit "a missing text file" 3 "$work/none" --model $model --file "$work/none"
printf 'a\377' >"$work/bad"
expect_exit "bad UTF-8" 1 "not valid UTF-8 at byte 1" --model $model --file "$work/bad"
printf '"a"\n{}\n' >"$work/lines"
expect_exit "a bad line" 1 "line 2" --model $model --json-lines --file "$work/lines"

[ "$failures" -eq 0 ] && echo "tokenize: all passed"
exit $((failures > 0))
