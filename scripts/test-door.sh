#!/usr/bin/env bash
# Tries the wheel on Debian systems that have nothing but Python: 12 and 13, and its programs on 11. Then the
# code of the documentation on this machine, with what the wheel installs.
#
# The systems are made by debootstrap, in .cache/door, when they are missing. What a try writes is in memory;
# processes, mounts and the loopback are its own and end with it. Ends with 77 and a reason where systems
# cannot be made. With --local the wheel of scripts/wheel.sh --local is tried on this machine alone.
. "$(dirname "$0")/lib.sh"
. scripts/wheel-lib.sh

DOOR=$ROOT/.cache/door

skip() {
    printf 'The wheel is not tried on other systems: %s\n' "$*" >&2
    exit 77
}

if [ "${1:-}" = --local ]; then
    wheel=$(scripts/wheel.sh --local)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    install=(-m pip install --quiet --disable-pip-version-check --no-index)
    "$VENV/bin/python" -m venv "$work/venv"
    "$work/venv/bin/python" "${install[@]}" --target "$work/folder" "$wheel"
    unset PLASMON_BIN
    # Installed into a folder, the package finds its programs there. The environment has none yet.
    PYTHONPATH=$work/folder "$work/venv/bin/python" python/tests/door.py
    "$work/venv/bin/python" "${install[@]}" "$wheel"
    "$work/venv/bin/python" python/tests/door.py
    exit
fi

[ "$(id -u)" = 0 ] || skip "only root can make them"
unshare --mount --pid --net --fork true 2>/dev/null || skip "root may not make namespaces here"
scripts/setup.sh --door
wheel=${PLASMON_WHEEL:-$(scripts/wheel.sh)}
mirror=$(debian_mirror)

# system NAME SUITE PACKAGE...: makes a Debian system with these packages.
system() {
    local root=$DOOR/$1 suite=$2
    local IFS=,
    [ -e "$root" ] && return
    say "Making Debian $suite with: ${*:3}"
    mkdir -p "$DOOR"
    rm -rf "$root.new"
    PATH=$PATH:/usr/sbin:/sbin debootstrap --variant=minbase ${3:+--include="${*:3}"} "$suite" "$root.new" \
        "$mirror" >"$root.log" 2>&1 ||
        die "debootstrap failed; $root.log ends with:" "$(tail -n 5 "$root.log")"
    rm -rf "$root.new"/var/cache/apt/archives/*.deb "$root.new"/var/lib/apt/lists/*
    mv "$root.new" "$root"
}

# inside [--online] NAME COMMAND: runs a shell command in the system, with the wheel and door.py in /door.
# What the command writes is gone afterwards. Online, it has this machine's network and pip's configuration.
inside() {
    local network=--net
    [ "$1" != --online ] || { network= && shift; }
    say "$1: ${*:2}"
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 PLASMON_LOG=warn \
        unshare --mount --pid $network --fork --kill-child bash -euc '
        root=$1
        mount -t tmpfs -o size=4g door "$root"
        mkdir "$root"/{written,work,system}
        mount -t overlay -o "lowerdir=$2,upperdir=$root/written,workdir=$root/work" door "$root/system"
        cd "$root/system"
        mount -t proc proc proc
        mount --rbind --make-rslave /dev dev
        mount -t tmpfs shm dev/shm
        mkdir door
        cp -r "$3" "$4" "$5" door
        if [ "$6" = --net ]; then
            ip link set lo up
        else
            mkdir -p etc/ssl/certs
            cp -L /etc/resolv.conf etc
            cp -L /etc/ssl/certs/ca-certificates.crt etc/ssl/certs
            [ ! -e /etc/pip.conf ] || cp -L /etc/pip.conf etc
        fi
        chroot . sh -euc "$7"' inside "$work/root" "$DOOR/$1" "$wheel" "$ROOT/python/tests/door.py" \
        "$work/programs" "$network" "${*:2}"
}

# The programs alone, as they lie in a prefix, for a system whose Python is too old.
work=$(mktemp -d)
mkdir "$work/root"
trap 'rm -rf "$work"' EXIT
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --target "$work/programs" "$wheel"

install='python3 -m venv /venv; /venv/bin/pip install --quiet --no-index /door/*.whl'

system debian-11 bullseye
system debian-12 bookworm python3 python3-venv
system debian-13 trixie python3 python3-venv
system debian-12-libfabric bookworm python3 python3-venv libfabric1
system debian-13-libfabric trixie python3 python3-venv libfabric1

failed=0
inside debian-11 '
    PATH=/door/programs/bin:$PATH
    plasmon --version
    plasmon serve --socket /tmp/node.sock --listen 127.0.0.1:0 --memory 256MiB --log warn &
    until plasmon status --socket /tmp/node.sock 2>/dev/null | grep libexec/plasmon; do kill -0 $!; done
    echo hello | plasmon put --socket /tmp/node.sock - --name greeting
    plasmon get --socket /tmp/node.sock greeting | grep -x hello
    kill $!
    wait $!' || failed=1
for release in 12 13; do
    inside "debian-$release" "$install; /venv/bin/python /door/door.py" || failed=1
    inside --online "debian-$release" "$install; /venv/bin/plasmon demo" || failed=1
    inside "debian-$release-libfabric" "$install; /venv/bin/python /door/door.py system" || failed=1
done
say "The code of the documentation, with the wheel on this machine"
"$VENV/bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
(unset PLASMON_BIN && PLASMON_PYTHON=$work/venv/bin/python scripts/test-docs.sh) || failed=1
exit $failed
