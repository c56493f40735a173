#!/usr/bin/env bash
# Runs the code of the documentation (docs/tools/fences.py): test-docs.sh [PAGE.md...], by default all pages.
# Prints what was not run, and why.
#
# PLASMON_PYTHON names an interpreter that has Plasmon; it gets what the pages and pytest need. By default
# Plasmon is built first, and .venv is used.
. "$(dirname "$0")/lib.sh"

if [ -z "${PLASMON_PYTHON:-}" ]; then
    scripts/build.sh >&2
    PLASMON_PYTHON=$VENV/bin/python
elif ! "$PLASMON_PYTHON" -c 'import numpy, pyarrow, pytest, sybil' 2>/dev/null; then
    mapfile -t needed < <(grep -E '^(numpy|pyarrow|pytest|sybil)==' python/requirements-dev.txt)
    "$PLASMON_PYTHON" -m pip install --quiet --disable-pip-version-check "${needed[@]}"
fi
pages=("$@")
if [ $# = 0 ]; then
    mapfile -t pages < <(echo README.md && find docs -name '*.md' | sort)
fi
PYTHONPATH=docs/tools exec "$PLASMON_PYTHON" -m pytest -q --tb=short -p fences -p no:cacheprovider \
    --rootdir "$ROOT" -c /dev/null "${pages[@]}"
