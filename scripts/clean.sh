#!/usr/bin/env bash
# Removes everything that was built or downloaded here. The demo keeps its data in the user's cache.
. "$(dirname "$0")/lib.sh"
command -v cargo >/dev/null && cargo clean
rm -rf "$VENV" .cache dist fuzz/found
find python e2e bench \( -name '__pycache__' -o -name '.*_cache' \) -prune -exec rm -rf {} +
rm -rf .pytest_cache .mypy_cache .ruff_cache
