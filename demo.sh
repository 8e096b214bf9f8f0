#!/bin/sh
# Builds spillway and serves the demo model, Rill, on http://127.0.0.1:30000. Installs the Debian
# packages that are missing (it says which). Arguments go to `spillway serve`: ./demo.sh --port 8080
set -eu
cd "$(dirname "$0")"
tools/install_packages build
make all
cat <<'EOF'

When the server says that it is ready, ask it something from another terminal:

  curl http://localhost:30000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"default","messages":[{"role":"user","content":"Hello"}],"max_tokens":50}'

or talk to the model without a server: build/spillway chat

EOF
exec build/spillway serve --model-path models/rill "$@"
