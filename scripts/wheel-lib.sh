# shellcheck shell=bash
# Functions of the scripts that build wheels: the tools, Debian's archive, the old glibc. They source it after
# lib.sh.

# Folder of everything that wheels need and that is no output of cargo.
WHEEL_CACHE=$ROOT/.cache/wheel
WHEEL_TOOLS=$WHEEL_CACHE/tools
# Oldest glibc on which the wheel runs: that of RHEL 8, Debian 10 and Ubuntu 20.04.
GLIBC=2.28

# wheel_tools: makes the Python environment of the pinned tools.
wheel_tools() {
    local wanted
    wanted=$(checksum python/requirements-wheel.txt)
    fresh "$WHEEL_TOOLS/.requirements" "$wanted" && return
    say "Installing the tools that build wheels"
    "$VENV/bin/python" -m venv --clear "$WHEEL_TOOLS"
    "$WHEEL_TOOLS/bin/python" -m pip install --quiet --disable-pip-version-check \
        -r python/requirements-wheel.txt
    echo "$wanted" >"$WHEEL_TOOLS/.requirements"
}

# debian_mirror: prints the address of Debian's archive, as apt of this machine has it.
debian_mirror() {
    local mirror
    mirror=${PLASMON_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' \
        'Created-By: Packages' 2>/dev/null | awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }')}
    [ -n "$mirror" ] || die "apt of this machine knows no archive of Debian." \
        "Name one, as it would stand in sources.list, in PLASMON_DEBIAN_MIRROR."
    echo "${mirror%/}"
}

# debian_apt ARGUMENT...: runs apt-get on Debian 12 and 13, whatever this machine itself is.
debian_apt() {
    apt-get -qq -o "Dir::Etc::sourcelist=$WHEEL_CACHE/apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State::lists=$WHEEL_CACHE/apt/lists" -o "Dir::Cache=$WHEEL_CACHE/apt/cache" \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

# debian_lists: fetches the package lists for debian_apt.
debian_lists() {
    mkdir -p "$WHEEL_CACHE"/apt/{lists,cache/archives}/partial
    cat >"$WHEEL_CACHE/apt/debian.sources" <<SOURCES
Types: deb deb-src
URIs: $(debian_mirror)
Suites: bookworm trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    debian_apt update
}
