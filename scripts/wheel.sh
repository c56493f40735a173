#!/usr/bin/env bash
# Builds the wheel: the Python package, the programs and a libfabric of their own, in dist.
#
# The wheel runs on every Linux with Python 3.11 or newer and glibc 2.28 or newer, of the processor on which
# it was built: build the one for arm64 on an arm64 machine. With --local it is one for this machine alone,
# in .cache/wheel/local, of the programs and the package that scripts/build.sh has built, with a copy of this
# machine's libfabric. That takes seconds, and everything about the wheel is as it will be but glibc and
# libfabric.
. "$(dirname "$0")/lib.sh"
. scripts/wheel-lib.sh

# pack WHEEL PROGRAMS LIBRARIES FOLDER: adds the programs and the libraries to a wheel of the Python package.
# Prints the path of the new wheel, in FOLDER.
pack() {
    local wheel=$1 programs=$2 libraries=$3 folder=$4 work data
    work=$(mktemp -d "$WHEEL_CACHE/work.XXXXXX")
    "$VENV/bin/wheel" unpack --dest "$work" "$wheel" >/dev/null
    data=$(echo "$work"/plasmon-*)/$(basename "$(echo "$work"/plasmon-*)").data
    mkdir -p "$data/scripts" "$data/data/libexec/plasmon"
    cp "$programs/plasmon" "$data/scripts"
    cp "$programs/plasmon-node" "$libraries"/* "$data/data/libexec/plasmon"
    strip "$data/scripts/plasmon" "$data"/data/libexec/plasmon/{plasmon-node,*.so*}
    chmod 755 "$data/scripts/plasmon" "$data/data/libexec/plasmon/plasmon-node"
    "$VENV/bin/wheel" pack --dest-dir "$folder" "$work"/plasmon-* >/dev/null
    rm -rf "$work"
    echo "$folder/$(basename "$wheel")"
}

mkdir -p "$WHEEL_CACHE"
if [ "${1:-}" = --local ]; then
    scripts/build.sh >&2
    libraries=$(mktemp -d "$WHEEL_CACHE/libraries.XXXXXX")
    trap 'rm -rf "$libraries"' EXIT
    cp -L "$(pkg-config --variable=libdir libfabric)/libfabric.so.1" "$libraries"
    rm -rf "$WHEEL_CACHE/local"
    mkdir "$WHEEL_CACHE/local"
    pack "$VENV"/wheel/*.whl "$(built_dir)" "$libraries" "$WHEEL_CACHE/local"
    exit
fi

scripts/setup.sh >&2
libfabric=$(scripts/libfabric.sh)
machine=$(uname -m)
built=$WHEEL_CACHE/built
mkdir -p dist
rm -rf "$built" dist/*.whl
mkdir -p "$built"
# The builds for this machine lie elsewhere, so that neither disturbs the other.
programs=$(target_dir)/wheel
export PATH=$WHEEL_TOOLS/bin:$PATH PKG_CONFIG_PATH=$libfabric PKG_CONFIG_ALLOW_CROSS=1
export CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_RELEASE_STRIP=symbols
say "Building plasmon for glibc $GLIBC" >&2
# In a working directory above them, Zig names its headers by relative paths, which bindgen does not find.
(
    cd "$built"
    CARGO_TARGET_DIR=$programs cargo-zigbuild zigbuild --release --locked -p plasmon-cli \
        --manifest-path "$ROOT/Cargo.toml" --target "$machine-unknown-linux-gnu.$GLIBC"
)
# Maturin calls Zig with other settings, so each would build again what the other has built.
CARGO_TARGET_DIR=$programs/python maturin build --quiet --release --locked --zig \
    --compatibility "manylinux_${GLIBC/./_}" \
    --target "$machine-unknown-linux-gnu" --interpreter "$VENV/bin/python" \
    --manifest-path python/Cargo.toml --out "$built"
say "Packing the wheel" >&2
mkdir "$built/libraries"
cp "$libfabric"/lib/* "$libfabric/LICENSE.libfabric" "$built/libraries"
whole=$(pack "$built"/*.whl "$programs/$machine-unknown-linux-gnu/release" "$built/libraries" dist)
# libfabric's provider for RDMA is loaded only where the host has the libraries of rdma-core.
auditwheel repair --plat "manylinux_${GLIBC/./_}_$machine" --wheel-dir "$built/audited" \
    --exclude libibverbs.so.1 --exclude librdmacm.so.1 --exclude libfabric.so.1 \
    "$whole" >"$built/audit.log" 2>&1 ||
    die "The wheel does not run on glibc $GLIBC:" "$(cat "$built/audit.log")"
mv "$built"/audited/*.whl "$whole"
du -h "$whole" >&2
echo "$whole"
