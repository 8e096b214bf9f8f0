#!/bin/sh
# api_test.sh - scripted models through the whole program: loader to event stream. See api_client.py.
set -eu

command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 "$(dirname "$0")/api_client.py" "$SPILLWAY"
