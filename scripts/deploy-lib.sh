# shellcheck shell=bash
# Functions of the scripts that try the files in deploy: Debian systems, and tries in copies of them. Sourced
# after lib.sh.

DEPLOY_CACHE=$ROOT/.cache/deploy
# Folders of /usr/share that no container needs.
NO_DOCUMENTATION=(doc info man locale lintian bash-completion)

# needs_namespaces WHAT: ends the script with 77 and a reason if Debian systems cannot be made and run here.
needs_namespaces() {
    local reason
    if [ "$(id -u)" != 0 ]; then
        reason="only root can make Debian systems and hosts"
    elif ! unshare --mount --pid --net --uts --fork true 2>/dev/null; then
        reason="root may not make namespaces here"
    else
        reason=$(scripts/setup.sh --deploy 2>&1) && return
    fi
    printf '%s: not tried here: %s\n' "$1" "$reason" >&2
    exit 77
}

# a_wheel: prints the path of the wheel to try: PLASMON_WHEEL, or one that is built now.
a_wheel() {
    if [ -n "${PLASMON_WHEEL:-}" ]; then realpath "$PLASMON_WHEEL"; else scripts/wheel.sh; fi
}

# debian_system NAME PACKAGES [OPTION...]: makes a system of Debian 12 with these packages (with commas
# between them) in the cache, unless it is there.
debian_system() {
    local root=$DEPLOY_CACHE/$1 packages=$2 wanted="${*:2}" exclude
    shift 2
    fresh "$root.packages" "$wanted" && [ -d "$root" ] && return
    say "Making a Debian 12 with $packages" >&2
    for exclude in "${NO_DOCUMENTATION[@]}"; do
        set -- "$@" --dpkgopt="path-exclude=/usr/share/$exclude/*"
    done
    mkdir -p "$DEPLOY_CACHE"
    rm -rf "$root" "$root.packages"
    mmdebstrap --mode=root "$@" --include="$packages" bookworm "$root" \
        ${PLASMON_DEBIAN_MIRROR:+"$PLASMON_DEBIAN_MIRROR"} >"$root.log" 2>&1 ||
        die "mmdebstrap failed; $root.log ends with:" "$(tail -n 5 "$root.log")"
    echo "$wanted" >"$root.packages"
}

# inside_system NAME FILE... -- COMMAND: runs a shell command in a copy of the system, with the files in /try.
# It has mounts, processes, a network and a name of its own. What it writes is gone afterwards.
inside_system() {
    local root=$DEPLOY_CACHE/$1 files=()
    shift
    while [ "$1" != -- ]; do
        files+=("$(realpath "$1")")
        shift
    done
    # shellcheck disable=SC2016
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 \
        unshare --mount --pid --net --uts --ipc --fork --kill-child bash -euc '
        mkdir -p "$1.try"
        mount -t tmpfs -o size=4g try "$1.try"
        cd "$1.try"
        mkdir written work system
        mount -t overlay -o "lowerdir=$1,upperdir=written,workdir=work" try system
        cd system
        mount -t proc proc proc
        mount -t sysfs -o ro sys sys
        mount --rbind --make-rslave /dev dev
        mount -t tmpfs shm dev/shm
        mkdir try
        cp -r "${@:3}" try
        # The shell stays, as the process that adopts orphans.
        chroot . bash -euc "$2" || exit' inside "$root" "$2" "${files[@]}"
}
