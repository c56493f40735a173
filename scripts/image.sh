#!/usr/bin/env bash
# Builds the container image in dist, as an OCI archive: Debian 12 with Python and the wheel, no more.
#
# No image is fetched. The packages are Debian's, the wheel is PLASMON_WHEEL or built now. The root file
# system stays in .cache/deploy/image. Prints the path. Ends with 77 and a reason where it cannot be made.
. "$(dirname "$0")/lib.sh"
. scripts/deploy-lib.sh

IMAGE_USER=4740

needs_namespaces "The image"
[ -x "$VENV/bin/python" ] || scripts/setup.sh
wheel=$(a_wheel)
# RDMA takes libraries that are not in the wheel.
debian_system image python3,ca-certificates,libibverbs1,librdmacm1,ibverbs-providers,usr-is-merged \
    --variant=essential --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
root=$DEPLOY_CACHE/image

say "Installing $(basename "$wheel") into it" >&2
rm -rf "${root:?}"/usr/local "${root:?}"/tmp/*
mkdir -p "$root"/usr/local/bin "$root"/tmp/pip
cp -r "$VENV"/lib/python3*/site-packages/pip "$wheel" "$root/tmp/pip"
PYTHONPATH=/tmp/pip PYTHONDONTWRITEBYTECODE=1 chroot "$root" python3 -m pip install --quiet --no-index \
    --no-compile --no-cache-dir --disable-pip-version-check --break-system-packages \
    --root-user-action=ignore "/tmp/pip/$(basename "$wheel")"
rm -rf "$root"/tmp/pip
sed -i '/^plasmon:/d' "$root"/etc/{passwd,group}
echo "plasmon:x:$IMAGE_USER:$IMAGE_USER::/var/lib/plasmon:/usr/sbin/nologin" >>"$root/etc/passwd"
echo "plasmon:x:$IMAGE_USER:" >>"$root/etc/group"
install -d -m 700 -o "$IMAGE_USER" -g "$IMAGE_USER" "$root/var/lib/plasmon"
version=$(chroot "$root" plasmon --version | cut -d' ' -f2)

say "Packing the image" >&2
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=(--root "$DEPLOY_CACHE/store" --runroot "$DEPLOY_CACHE/store/run")
trap 'rm -rf "$DEPLOY_CACHE/store"' EXIT
rm -rf "$DEPLOY_CACHE/store"
mkdir -p dist
container=$(buildah "${store[@]}" from scratch)
# `buildah add` would give everything to root.
cp -a "$root/." "$(buildah "${store[@]}" mount "$container")"
buildah "${store[@]}" unmount "$container" >/dev/null
buildah "${store[@]}" config --user "$IMAGE_USER:$IMAGE_USER" --entrypoint '["plasmon"]' --cmd --help \
    --env PATH=/usr/local/bin:/usr/bin:/bin --env LANG=C.UTF-8 \
    --label org.opencontainers.image.title=plasmon \
    --label org.opencontainers.image.description="A distributed in-memory object store" \
    --label org.opencontainers.image.version="$version" \
    --label org.opencontainers.image.licenses=Apache-2.0 \
    --label org.opencontainers.image.revision="$(git rev-parse HEAD 2>/dev/null)" "$container"
archive=dist/plasmon-$version-$(uname -m).oci.tar
rm -f "$archive"
buildah "${store[@]}" commit --quiet --disable-compression=false "$container" \
    "oci-archive:$archive:plasmon:$version" >/dev/null
echo "The image has $(du -h "$archive" | cut -f1), and $(du -sh "$root" | cut -f1) when it is unpacked" >&2
echo "$archive"
