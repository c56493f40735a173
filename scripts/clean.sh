#!/usr/bin/env bash
# Removes everything that was built or downloaded.
. "$(dirname "$0")/lib.sh"
command -v cargo >/dev/null && cargo clean
rm -rf "$VENV" .cache .mypy_cache .ruff_cache
find python examples -name '*.so' -delete -o -name '__pycache__' -prune -exec rm -rf {} +
