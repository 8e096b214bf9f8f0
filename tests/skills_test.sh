#!/bin/sh
# skills_test.sh - the demo model passes its own exam over HTTP.
# label: golden
# label: long
set -eu

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 "$(dirname "$0")/skills_test.py"
