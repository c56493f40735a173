#!/usr/bin/env bash
# The tests that `plasmon.plasma` shares with PyArrow 11's own Plasma, on both: what docs/migration.md calls
# the same is seen to be so. Ends with 77 where there is no Python that PyArrow 11 and Plasmon are both made
# for.
#
# The environment is that of the benchmarks, .cache/bench/plasma; Plasmon is what scripts/build.sh left.
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
# The tests skip a Plasma that is not there. Here it has to be.
"$PLASMA/bin/python" -W ignore -c 'import pyarrow.plasma'
PLASMON_BIN=$VENV/bin/plasmon "$PLASMA/bin/python" -m pytest -q python/tests/test_plasma*.py
