#!/bin/sh
# sdk_test.sh - the public client libraries (openai, ai) talk to the demo model.
# Needs node >= 18 and the pinned packages: (cd tests/oracle && npm ci).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
command -v node >/dev/null || { echo "skipped: no node"; exit 77; }
[ -d "$here/oracle/node_modules/openai" ] || { echo "skipped: no tests/oracle/node_modules (npm ci)"; exit 77; }
exec node "$here/oracle/sdk_client.mjs" "$SPILLWAY" "$here/../models/rill"
