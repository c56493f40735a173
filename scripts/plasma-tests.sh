#!/usr/bin/env bash
# Runs the tests that `plasmon.plasma` shares with PyArrow 11's own Plasma on both, to check what
# docs/migration.md calls equal. Ends with 77 if there is no Python that both PyArrow 11 and Plasmon support.
#
# The environment is that of the benchmarks, .cache/bench/plasma. Plasmon is the build of scripts/build.sh.
. "$(dirname "$0")/lib.sh"

PLASMA=.cache/bench/plasma

if ! python_of 3.11 >/dev/null; then
    echo "Not compared with PyArrow's Plasma: that takes Python 3.11 with venv, and there is none here."
    exit 77
fi
scripts/bench-setup.sh plasma
[ ! -f "$PLASMA.missing" ] || die "There is nothing to compare with: $(cat "$PLASMA.missing")"

wanted=$(cat "$VENV/.plasmon")
if ! fresh "$PLASMA/.plasmon" "$wanted"; then
    "$PLASMA/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
        "$VENV"/wheel/*.whl
    echo "$wanted" >"$PLASMA/.plasmon"
fi
# The tests skip a missing Plasma. Here it must not be missing.
"$PLASMA/bin/python" -W ignore -c 'import pyarrow.plasma'
PLASMON_BIN=$VENV/bin/plasmon "$PLASMA/bin/python" -m pytest -q python/tests/test_plasma*.py
