#!/usr/bin/env bash
# Checks the files for Kubernetes against its schemas, and runs their pods on hosts of this machine, with the
# image. No cluster is needed, and none is used.
#
# Ends with 77 and a reason where that cannot be.
. "$(dirname "$0")/lib.sh"
. scripts/deploy-lib.sh

needs_namespaces "The files for Kubernetes"
{ command -v etcd && [ -x "$VENV/bin/python" ]; } >/dev/null || scripts/setup.sh
archive=${PLASMON_IMAGE:-$(scripts/image.sh)}
tools=$DEPLOY_CACHE/tools
wanted=$(checksum python/requirements-deploy.txt)
if ! fresh "$tools/.requirements" "$wanted"; then
    say "Installing the schemas of Kubernetes"
    "$VENV/bin/python" -m venv --clear "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r python/requirements-deploy.txt
    echo "$wanted" >"$tools/.requirements"
fi
mkdir -p "$DEPLOY_CACHE/hosts"
unshare --mount --pid --net --uts --ipc --fork --kill-child bash -euc '
    mount -t proc proc /proc
    # The shell stays, as the process that adopts orphans.
    "$@" || exit' kubernetes "$tools/bin/python" -u scripts/kubernetes.py "$(realpath "$archive")" \
    "$DEPLOY_CACHE/hosts"
