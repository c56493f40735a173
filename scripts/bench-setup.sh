#!/usr/bin/env bash
# Installs the peers of the benchmarks into .cache/bench. Quick when nothing is missing.
#
# Only the harness's own environment must succeed. A peer that cannot be installed is left out. The reason is
# kept in .cache/bench/<peer>.missing and shown in the benchmarks' tables.
. "$(dirname "$0")/lib.sh"

CACHE=.cache/bench
mkdir -p "$CACHE/bin"

# environment NAME VERSION...: makes .cache/bench/NAME from bench/requirements/NAME.txt, with one of these
# Pythons.
environment() {
    local name=$1 venv=$CACHE/$1 requirements=bench/requirements/$1.txt python wanted
    shift
    wanted=$(checksum "$requirements")
    fresh "$venv/.requirements" "$wanted" && "$venv/bin/python" -c '' 2>/dev/null && return
    if ! python=$(python_of "$@"); then
        echo "it needs one of these Pythons, with venv: $*"
        return 1
    fi
    say "Making $venv with $("$python" --version)" >&2
    "$python" -m venv --clear "$venv" >&2 &&
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2 &&
        echo "$wanted" >"$venv/.requirements" && return
    echo "pip could not install $requirements (is the package index reachable?)"
    return 1
}

# redis: makes .cache/bench/bin/redis-server. Debian's redis-tools has the program without starting a service.
redis() {
    local link=$CACHE/bin/redis-server program
    if ! "$link" --version >/dev/null 2>&1; then
        if ! program=$(command -v redis-server); then
            program=/usr/bin/redis-check-rdb
            if [ ! -x $program ] && ! install_package redis-tools; then
                echo "there is no redis-server here; as root:" \
                    "apt-get update && apt-get install -y redis-tools"
                return 1
            fi
        fi
        ln -sfn "$program" "$link"
    fi
    "$link" --version >/dev/null 2>&1 && return
    echo "$link does not run"
    return 1
}

# ucx: Debian's ucx-utils has ucx_perftest.
ucx() {
    command -v ucx_perftest >/dev/null && return
    install_package ucx-utils && command -v ucx_perftest >/dev/null && return
    echo "there is no ucx_perftest here; as root: apt-get update && apt-get install -y ucx-utils"
    return 1
}

# tonic: builds bench/tonic by itself, with dependencies of its own.
tonic() {
    if ! cargo build --quiet --release --locked --manifest-path bench/tonic/Cargo.toml \
        --target-dir "$CACHE/tonic" >&2; then
        echo "cargo could not build bench/tonic (is crates.io reachable?)"
        return 1
    fi
    ln -sfn ../tonic/release/plasmon-bench-tonic "$CACHE/bin/plasmon-bench-tonic"
}

# install_package NAME: installs a Debian package, as root.
install_package() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "Installing the Debian package $1" >&2
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y)
    install+=(--no-install-recommends "$1")
    { "${install[@]}" || (apt-get -qq update && "${install[@]}"); } >/dev/null 2>&1 </dev/null
}

# optional PEER COMMAND...: runs the command. If it fails, keeps its output as the reason.
optional() {
    local peer=$1 missing=$CACHE/$1.missing reason
    shift
    if reason=$("$@"); then
        rm -f "$missing"
    else
        echo "$reason" >"$missing"
        echo "Without $peer: $reason" >&2
    fi
}

# With an argument, installs only that: the harness, or plasma.
if [ "${1:-harness}" = harness ]; then
    reason=$(environment harness 3.14 3.13 3.12 3.11) || die "The benchmarks cannot run: $reason"
fi
[ "${1:-plasma}" = plasma ] && optional plasma environment plasma 3.11 3.10
[ $# = 0 ] || exit 0
optional redis redis
optional ucx ucx
optional tonic tonic
optional ray environment ray 3.13 3.12 3.11
optional mooncake environment mooncake 3.13 3.12 3.11
# The package is used in the environment for which it was built. An environment with another version of Python
# could not load its NumPy.
version='import sys; print("%d.%d" % sys.version_info[:2])'
built_for=$("${PLASMON_PYTHON:-$VENV/bin/python}" -c "$version" 2>/dev/null || true)
optional mpi environment mpi ${built_for:-3.14 3.13 3.12 3.11}
