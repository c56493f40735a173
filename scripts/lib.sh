# shellcheck shell=bash
# Shared functions and paths of the other scripts, which source this file.
#
# Sets ROOT (the repository, also the working directory), VENV and PROFILE.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
cd "$ROOT"

# rustup puts cargo on the PATH of login shells only.
if ! command -v cargo >/dev/null && [ -f "${CARGO_HOME:-$HOME/.cargo}/env" ]; then
    # shellcheck source=/dev/null
    . "${CARGO_HOME:-$HOME/.cargo}/env"
fi

# All builds of the Python module use one interpreter, because PyO3 is compiled again when it changes.
export PYO3_PYTHON=$VENV/bin/python

# The profile of Cargo.toml with which programs are built.
PROFILE=${PLASMON_PROFILE:-release}

# say STEP: announces a step. die LINE...: prints the reason of a failure, and exits.
say() {
    if [ -t 1 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi
}
die() {
    printf '%s\n' "$@" >&2
    exit 1
}

# checksum PATH...: prints a checksum of files and folders, without files that git ignores.
checksum() {
    find "$@" -type f -not -path '*/__pycache__/*' -not -path '*/.*_cache/*' -not -name '*.so' -print0 |
        sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# fresh STAMP WORD: succeeds if the work that left STAMP was done for WORD.
fresh() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

# python_of VERSION...: prints the first interpreter of these versions (such as 3.11) that can make a venv.
python_of() {
    local version python right
    for version in "$@"; do
        for python in "python$version" "/usr/bin/python$version" python3; do
            right="sys.exit('%d.%d' % sys.version_info[:2] != '$version')"
            if "$python" -c "import sys, venv, ensurepip; $right" 2>/dev/null; then
                command -v "$python"
                return
            fi
        done
    done
    return 1
}

# Profile and selection of packages whenever cargo builds tests. The features of a dependency are those that
# all selected packages ask for, so another selection compiles half of the dependencies again.
TESTED=(--profile checked --workspace --exclude plasmon-python)

# Selections of the programs for users, and of those of the benchmarks. The command is selected with the
# benchmarks, because all that it has in common with them is built already. Tests have all programs from one
# selection; the example in it makes cargo choose the features that tests ask for.
if [ "$PROFILE" = checked ]; then
    PROGRAMS=("${TESTED[@]}" --bins --example plasmon_e2e_clock)
    BENCHMARKS=("${PROGRAMS[@]}")
else
    PROGRAMS=(--profile "$PROFILE" -p plasmon-cli)
    BENCHMARKS=("${PROGRAMS[@]}" -p plasmon-bench --bin 'plasmon-bench*')
fi

# build_benchmarks: builds the programs of the benchmarks in built_dir.
build_benchmarks() { cargo build --quiet --locked "${BENCHMARKS[@]}"; }

# target_dir: prints cargo's target folder.
target_dir() {
    cargo metadata --format-version 1 --no-deps --offline |
        sed -E 's/.*"target_directory":"([^"]*)".*/\1/'
}

# built_dir: prints the folder of the programs that are built with PROFILE.
built_dir() { echo "$(target_dir)/$PROFILE"; }

# guest_program: prints the path of the program that boots virtual machines, which is built with the tests.
guest_program() { echo "$(target_dir)/checked/plasmon-e2e-guest"; }
