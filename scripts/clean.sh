#!/usr/bin/env bash
# Removes everything that was built or downloaded.
. "$(dirname "$0")/lib.sh"
command -v cargo >/dev/null && cargo clean
rm -rf "$VENV" .cache dist fuzz/found
find python examples e2e bench \( -name '__pycache__' -o -name '.*_cache' \) -prune -exec rm -rf {} +
rm -rf .pytest_cache .mypy_cache .ruff_cache
