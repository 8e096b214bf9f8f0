#!/bin/sh
# bench_scripts_test.sh - the scripts that measure on a card read messages and figures rightly.
# label: nosan
set -eu

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 "$(dirname "$0")/bench_scripts_test.py"
