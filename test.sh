#!/bin/sh
# Builds spillway and runs all its tests. Installs the Debian packages that are missing (it says
# which). Tests that compare with another implementation (node, Jinja2) skip with a line where it is
# absent; ./test.sh --oracles installs those too.
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" = --oracles ]; then
    tools/install_packages oracles
    (cd tests/oracle && npm ci --no-audit --no-fund --loglevel=error)
else
    tools/install_packages test
fi
make check
