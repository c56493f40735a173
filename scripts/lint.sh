#!/usr/bin/env bash
# Formatting, lints and types, of Rust and Python. With --fix it formats instead of complaining. With --short
# it leaves out the build without etcd's client, for which dependencies are checked again.
. "$(dirname "$0")/lib.sh"
scripts/setup.sh

PYTHON_CODE=(python bench scripts docs/tools examples/log/python)

if [ "${1:-}" = --fix ]; then
    cargo fmt --all
    cargo fmt --manifest-path bench/tonic/Cargo.toml
    "$VENV/bin/ruff" check --quiet --fix "${PYTHON_CODE[@]}"
    "$VENV/bin/ruff" format "${PYTHON_CODE[@]}"
    exit
fi
say "cargo fmt --check"
cargo fmt --all --check
cargo fmt --manifest-path bench/tonic/Cargo.toml --check
say "cargo clippy"
# Macros and build scripts are those of the tests, which have this profile.
cargo clippy --quiet --locked --profile checked --workspace --all-targets -- -D warnings
if [ "${1:-}" != --short ]; then
    say "cargo clippy, without etcd's client"
    cargo clippy --quiet --locked --profile checked -p plasmon-cli --no-default-features -- -D warnings
fi
say "ruff"
"$VENV/bin/ruff" format --check "${PYTHON_CODE[@]}"
"$VENV/bin/ruff" check "${PYTHON_CODE[@]}"
say "mypy"
export MYPYPATH=$ROOT/python/python:$ROOT/examples/log/python
"$VENV/bin/mypy" --config-file python/pyproject.toml python/python python/tests examples/log/python
"$VENV/bin/mypy" --config-file python/pyproject.toml docs/tools/*.py
"$VENV/bin/mypy" --config-file python/pyproject.toml --ignore-missing-imports scripts/*.py
MYPYPATH=$ROOT/bench "$VENV/bin/mypy" --config-file bench/mypy.ini bench/harness bench/tests
MYPYPATH=$MYPYPATH:$ROOT/bench/workers "$VENV/bin/mypy" --config-file bench/mypy.ini \
    bench/workers/*.py bench/mpi/*.py
