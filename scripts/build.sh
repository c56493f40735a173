#!/usr/bin/env bash
# Leaves the plasmon binary in cargo's release folder, and in .venv the Python package and a link to the binary.
. "$(dirname "$0")/lib.sh"
scripts/setup.sh

say "Building plasmon (release)"
cargo build --release --locked -p plasmon-cli
ln -sfn "$(target_dir)/release/plasmon" "$VENV/bin/plasmon"

stamp=$VENV/.plasmon
wanted=$(checksum Cargo.toml Cargo.lock python crates/plasmon)
if ! fresh "$stamp" "$wanted"; then
    say "Installing the Python package into .venv"
    VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH \
        maturin develop --release --locked --manifest-path python/Cargo.toml
    echo "$wanted" >"$stamp"
fi
