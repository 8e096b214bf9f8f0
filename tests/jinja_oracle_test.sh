#!/bin/sh
# label: oracle
# Compares the template engine with Python's Jinja2; see tests/oracle/jinja_oracle.py.
set -eu

python=
for candidate in /usr/bin/python3 python3; do
    if "$candidate" -c 'import jinja2' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: no python3 with jinja2 (Debian: python3-jinja2)"
    exit 77
fi
: "${SPILLWAY:?is not set to the program}"
SPILLWAY=$(realpath "$SPILLWAY")
export SPILLWAY
exec "$python" "$(dirname "$0")/oracle/jinja_oracle.py"
