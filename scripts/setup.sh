#!/usr/bin/env bash
# Installs the requirements of building and testing: system packages, and a Python environment in .venv.
# Checks the Rust toolchain, which is the user's own. Quick when nothing is missing. With --rdma it only
# installs the requirements of guests, the virtual machines in which RDMA is tested; with --fuzz also those of
# libFuzzer; with --wheel only those of the libfabric in the wheel, with --door only that of the Debian
# systems on which the wheel is tried, with --deploy only those of the image and of what runs the files in
# deploy.
. "$(dirname "$0")/lib.sh"

REQUIREMENTS=python/requirements-dev.txt

# usable_python: prints the first interpreter that is new enough and can make a virtual environment.
usable_python() {
    local python
    for python in ${PYTHON:-} python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    return 1
}

# bindgen loads libclang and reads clang's own headers (stddef.h).
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null &&
        compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null
}

# Prints the Debian packages of build requirements that this machine lacks.
missing_packages() {
    command -v cc >/dev/null || echo gcc
    [ -f /usr/include/stdio.h ] || echo libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists 'libfabric >= 1.17' 2>/dev/null || echo libfabric-dev
    has_libclang || echo libclang-dev
    # The client of etcd (the Cargo feature `etcd`, on by default) is generated from etcd's protocol
    # description.
    command -v protoc >/dev/null || echo protobuf-compiler
    usable_python >/dev/null || echo python3-venv
    # Only root can make network namespaces. For other users the end-to-end tests run on loopback.
    [ "$(id -u)" != 0 ] || command -v ip >/dev/null || echo iproute2
}

# Prints the further Debian packages that tests need: etcd and its command, Prometheus' promtool, the program
# by which users mount, and LMDB.
missing_packages_for_tests() {
    command -v etcd >/dev/null || echo etcd-server
    command -v etcdctl >/dev/null || echo etcd-client
    command -v promtool >/dev/null || echo prometheus
    command -v fusermount3 >/dev/null || echo fuse3
    /usr/bin/python3 -c 'import lmdb' 2>/dev/null || echo python3-lmdb
}

# Prints the Debian packages that guests need: QEMU, the tool that makes an RDMA device, and the device's
# driver.
missing_packages_for_guests() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    PATH=$PATH:/usr/sbin:/sbin command -v rdma >/dev/null || echo iproute2
    compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || echo ibverbs-providers
}

# Prints the Debian packages that make Debian systems and the image, and connect hosts.
missing_packages_for_deploy() {
    command -v mmdebstrap >/dev/null || echo mmdebstrap
    command -v buildah >/dev/null || echo buildah
    [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null || echo iproute2
}

install_packages() {
    local as_root=() packages=("$@")
    local line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    if ! command -v apt-get >/dev/null; then
        die "This machine lacks what these Debian packages provide: ${packages[*]}" \
            "It has no apt-get: install their counterparts, and run this again."
    fi
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo -n)
        if ! sudo -n true 2>/dev/null; then
            command -v sudo >/dev/null && line="sudo sh -c '$line'" || line="su -c '$line'"
            die "These packages are missing, and installing them takes root: ${packages[*]}" "Type:" "  $line"
        fi
    fi
    say "Installing Debian packages: ${packages[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    local install=("${apt[@]}" install -y --no-install-recommends "${packages[@]}")
    # The package lists may be missing or too old. They are fetched only then, because that takes time.
    if ! "${install[@]}" >/dev/null 2>&1 </dev/null; then
        "${apt[@]}" update </dev/null
        "${install[@]}" >/dev/null </dev/null
    fi
    # Packages of servers would start them, which is not wanted here.
    local server
    for server in etcd-server prometheus; do
        if [[ " ${packages[*]} " == *" $server "* ]] && [ -d /run/systemd/system ]; then
            "${as_root[@]}" systemctl --quiet disable --now "${server%-server}" || true
        fi
    done
}

check_rust() {
    local wanted have
    wanted=$(sed -nE 's/^rust-version = "(.*)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null; then
        echo "A Rust toolchain is needed, $wanted or newer, and there is no cargo on this PATH. Type:" >&2
        command -v curl >/dev/null || echo "  apt-get install -y curl ca-certificates" >&2
        die "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    fi
    have=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n' "$wanted" "${have%%-*}" | sort -V | head -n1)" != "$wanted" ]; then
        echo "Rust $wanted or newer is needed; $(command -v rustc) is $have. Type:" >&2
        command -v rustup >/dev/null && die "  rustup update stable && rustup default stable"
        die "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    fi
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        die "The Rust toolchain lacks rustfmt or clippy. Type:" "  rustup component add rustfmt clippy"
    fi
}

make_venv() {
    local stamp=$VENV/.requirements python wanted
    wanted=$(checksum "$REQUIREMENTS")
    fresh "$stamp" "$wanted" && "$VENV/bin/python" -c '' 2>/dev/null && return
    python=$(usable_python)
    say "Making .venv with $("$python" --version) and the pinned tools"
    "$python" -m venv --clear "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$REQUIREMENTS"
    echo "$wanted" >"$stamp"
}

if [ "${1:-}" = --fuzz ]; then
    mapfile -t missing < <(
        missing_packages
        command -v c++ >/dev/null || echo g++
    )
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    check_rust
    exit
fi
if [ "${1:-}" = --wheel ]; then
    mapfile -t missing < <(
        command -v autoconf >/dev/null || echo autoconf
        command -v automake >/dev/null || echo automake
        command -v libtoolize >/dev/null || echo libtool
        command -v make >/dev/null || echo make
        command -v strip >/dev/null || echo binutils
        command -v xz >/dev/null || echo xz-utils
        [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    )
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    exit
fi
if [ "${1:-}" = --door ]; then
    PATH=$PATH:/usr/sbin:/sbin command -v debootstrap >/dev/null || install_packages debootstrap
    exit
fi
if [ "${1:-}" = --rdma ]; then
    mapfile -t missing < <(missing_packages_for_guests)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    # The guests' kernel is not installed. It is fetched by means of these package lists.
    if ! apt-cache show linux-image-amd64 >/dev/null 2>&1; then
        [ "$(id -u)" = 0 ] || die "apt's package lists are missing. Type:" "  sudo apt-get update"
        apt-get -qq update </dev/null
    fi
    exit
fi
if [ "${1:-}" = --deploy ]; then
    mapfile -t missing < <(missing_packages_for_deploy)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    exit
fi
mapfile -t missing < <(
    missing_packages
    missing_packages_for_tests
)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
check_rust
make_venv
