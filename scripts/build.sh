#!/usr/bin/env bash
# Builds the plasmon binary in cargo's folder of the profile, and the Python package in .venv with a link to
# the binary. The profile is `release`, or what PLASMON_PROFILE says.
. "$(dirname "$0")/lib.sh"
scripts/setup.sh

say "Building plasmon ($PROFILE)"
cargo build --locked "${PROGRAMS[@]}"
ln -sfn "$(built_dir)/plasmon" "$VENV/bin/plasmon"

stamp=$VENV/.plasmon
# The wheel stays there for other environments.
wheels=$VENV/wheel
wanted="$(checksum Cargo.toml Cargo.lock python crates/plasmon) $PROFILE"
if ! fresh "$stamp" "$wanted" || [ ! -d "$wheels" ] ||
    ! "$VENV/bin/python" -c 'import plasmon' 2>/dev/null; then
    say "Building the Python package and installing it into .venv"
    rm -f "$stamp"
    rm -rf "$wheels"
    "$VENV/bin/maturin" build --quiet --profile "$PROFILE" --locked --compatibility linux \
        --interpreter "$VENV/bin/python" --manifest-path python/Cargo.toml --out "$wheels"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
        "$wheels"/*.whl
    echo "$wanted" >"$stamp"
fi
