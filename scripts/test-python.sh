#!/usr/bin/env bash
# Tests of values of other libraries, and of Plasmon within other libraries, each in an environment that has
# them: PyTorch from Debian, the others from PyPI (python/requirements-libraries.txt). Options go to pytest.
#
# The environments are in .cache/python; --environments only makes them. One that cannot be made is left out,
# by name.
. "$(dirname "$0")/lib.sh"
scripts/build.sh

wanted=$(cat "$VENV/.plasmon" python/requirements-libraries.txt | sha256sum)

# install_plasmon ENVIRONMENT: installs this build's wheel into it, unless it is there.
install_plasmon() {
    fresh "$1/.plasmon" "$wanted" && return
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
        "$VENV"/wheel/*.whl && echo "$wanted" >"$1/.plasmon"
}

# libraries: makes .cache/python/libraries, or fails.
libraries() {
    local venv=.cache/python/libraries
    fresh "$venv/.plasmon" "$wanted" && return
    "$VENV/bin/python" -m venv --clear "$venv" &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            -r python/requirements-libraries.txt && install_plasmon "$venv"
}

# torch: makes .cache/python/torch over Debian's own Python, or fails.
torch() {
    local venv=.cache/python/torch
    if ! /usr/bin/python3 -c 'import torch, venv, ensurepip' 2>/dev/null; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
        say "Installing the Debian packages python3-torch and python3-venv"
        local install=(env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y)
        install+=(--no-install-recommends python3-torch python3-venv)
        { "${install[@]}" || (apt-get -qq update && "${install[@]}"); } >/dev/null </dev/null || return 1
    fi
    fresh "$venv/.plasmon" "$wanted" && return
    /usr/bin/python3 -m venv --clear --system-site-packages "$venv" &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            $(grep -E '^(pytest|sybil)==' python/requirements-libraries.txt) && install_plasmon "$venv"
}

# tested ENVIRONMENT TEST...: runs tests there.
tested() {
    local environment=$1 venv=.cache/python/$1
    shift
    if ! "$environment"; then
        say "NOT TESTED: $* (the environment $venv could not be made)"
        return
    fi
    say "$venv: $*"
    PLASMON_BIN=$VENV/bin/plasmon "$venv/bin/python" -m pytest -q -p no:cacheprovider "${OPTIONS[@]}" "$@"
}

if [ "${1:-}" = --environments ]; then
    for environment in libraries torch; do
        "$environment" || say "The environment .cache/python/$environment could not be made"
    done
    exit
fi
OPTIONS=("$@")
tested libraries python/tests/test_frames.py python/tests/test_registered.py python/tests/test_cloudpickle.py
tested libraries python/tests/test_mapping.py python/tests/test_fsspec.py python/tests/test_proxystore.py
# The tests that zarr gives to stores are coroutines.
tested libraries -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function python/tests/test_zarr.py
tested libraries python/tests/test_dtypes.py python/tests/test_refused.py python/tests/test_storage.py
tested libraries python/tests/test_tables.py python/tests/test_joblib.py python/tests/test_dask.py
# The code of a page is run by docs/tools/fences.py, for each library where it is installed.
export PYTHONPATH=docs/tools
tested libraries -p fences --rootdir "$ROOT" -c /dev/null docs/libraries.md docs/processes.md docs/tables.md
tested torch -p fences --rootdir "$ROOT" -c /dev/null docs/processes.md
tested torch python/tests/test_torch.py
