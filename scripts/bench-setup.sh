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

# fio: Debian's package has it.
fio() {
    type -P fio >/dev/null && return
    install_package fio && type -P fio >/dev/null && return
    echo "there is no fio here; as root: apt-get update && apt-get install -y fio"
    return 1
}

# tonic: builds bench/tonic by itself, with dependencies of its own.
tonic() {
    if ! cargo build --quiet --release --locked --manifest-path bench/tonic/Cargo.toml \
        --target-dir "$CACHE/tonic" >&2; then
        echo "cargo could not build bench/tonic (does cargo reach its registry?)"
        return 1
    fi
    ln -sfn ../tonic/release/plasmon-bench-tonic "$CACHE/bin/plasmon-bench-tonic"
}

# fetch WHAT NAME...: has apt download Debian packages, or their sources, into the working folder. The package
# lists may be missing or too old. They are fetched only then, because that takes time.
fetch() {
    local what=$1
    shift
    apt-get -qq "$what" "$@" >/dev/null 2>&1 </dev/null && return
    [ "$(id -u)" = 0 ] && apt-get -qq update </dev/null >/dev/null 2>&1 &&
        apt-get -qq "$what" "$@" >/dev/null 2>&1 </dev/null
}

# moosefs: makes .cache/bench/moosefs of Debian's packages, which are not installed: they would start servers.
moosefs() {
    local folder=$CACHE/moosefs package
    if [ ! -x "$folder/usr/sbin/mfsmaster" ]; then
        if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
            echo "its packages are Debian's, and there is no apt-get here"
            return 1
        fi
        say "Fetching Debian's MooseFS" >&2
        rm -rf "$folder" && mkdir -p "$folder/packages" &&
            if ! (cd "$folder/packages" && fetch download moosefs-{master,chunkserver,client}); then
                echo "apt-get could not download moosefs-master, moosefs-chunkserver and moosefs-client"
                return 1
            fi
        for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder" >&2; done
    fi
    if ldd "$folder"/usr/{sbin/mfsmaster,sbin/mfschunkserver,bin/mfsmount} 2>/dev/null |
        grep -q 'not found'; then
        echo "$folder/usr/bin/mfsmount lacks a library: apt-get install libfuse3-3"
        return 1
    fi
}

# project: makes .cache/bench/project/source.tar, the source of Debian's zlib, which a benchmark builds.
project() {
    local folder=$CACHE/project list archive options
    [ -f "$folder/source.tar" ] && return
    if ! command -v apt-get >/dev/null; then
        echo "its source is Debian's, and there is no apt-get here"
        return 1
    fi
    say "Fetching the source of Debian's zlib" >&2
    rm -rf "$folder" && mkdir -p "$folder/lists/partial" "$folder/parts"
    # Sources are asked for by lists of their own, because most machines have none: those of the packages.
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb /deb-src /p' >"$folder/parts/own.list"
    for list in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$folder/parts/${list##*/}"
    done
    options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$ROOT/$folder/parts"
        -o "Dir::State::lists=$ROOT/$folder/lists" -o APT::Sandbox::User=root
        -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=")
    if ! (
        cd "$folder"
        apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only zlib
    ) </dev/null >&2; then
        echo "apt-get could not fetch the source of zlib"
        return 1
    fi
    rm -rf "$folder/lists" "$folder/parts"
    archive=$(compgen -G "$folder/zlib_*.orig.tar.*" | grep -v '\.asc$' | head -n1)
    "$CACHE/harness/bin/python" - "$archive" >"$folder/source.tar.new" <<'PYTHON' &&
import bz2, gzip, lzma, shutil, sys
path = sys.argv[1]
opened = {"bz2": bz2.open, "gz": gzip.open, "xz": lzma.open}[path.rpartition(".")[2]](path)
shutil.copyfileobj(opened, sys.stdout.buffer)
PYTHON
        mv "$folder/source.tar.new" "$folder/source.tar" && return
    echo "$archive cannot be unpacked"
    return 1
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
optional moosefs moosefs
optional juicefs environment juicefs 3.13 3.12 3.11
optional fio fio
optional project project
optional ray environment ray 3.13 3.12 3.11
optional mooncake environment mooncake 3.13 3.12 3.11
# The package is used in the environment for which it was built. An environment with another version of Python
# could not load its NumPy.
version='import sys; print("%d.%d" % sys.version_info[:2])'
built_for=$("${PLASMON_PYTHON:-$VENV/bin/python}" -c "$version" 2>/dev/null || true)
optional mpi environment mpi ${built_for:-3.14 3.13 3.12 3.11}
