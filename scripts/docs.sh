#!/usr/bin/env bash
# Makes the site of the documentation in .cache/site, and checks all links: the pages of the repository, the
# references of Python, Rust and the command line, and the man pages. It needs no network to be read.
. "$(dirname "$0")/lib.sh"

REQUIREMENTS=docs/requirements.txt
CACHE=$ROOT/.cache
[ -n "${PLASMON_BIN:-}" ] || scripts/build.sh >&2
plasmon=${PLASMON_BIN:-$VENV/bin/plasmon}

wanted=$(checksum "$REQUIREMENTS")
if ! fresh "$CACHE/docs/.requirements" "$wanted" || ! "$CACHE/docs/bin/python" -c '' 2>/dev/null; then
    python=$(python_of 3.14 3.13 3.12 3.11) || die "The documentation needs Python 3.11 or newer, with venv."
    say "Making .cache/docs with $("$python" --version)"
    "$python" -m venv --clear "$CACHE/docs"
    "$CACHE/docs/bin/python" -m pip install --quiet --disable-pip-version-check -r "$REQUIREMENTS"
    echo "$wanted" >"$CACHE/docs/.requirements"
fi

say "The documentation of the Rust crate"
RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
    cargo doc --quiet --locked --no-deps -p plasmon --target-dir "$(target_dir)/site"
say "The site"
"$CACHE/docs/bin/python" docs/tools/pages.py "$plasmon" "$(target_dir)/site/doc" "$CACHE/site-pages"
# Material for MkDocs advertises other products, with colours, at each start.
NO_MKDOCS_2_WARNING=1 "$CACHE/docs/bin/mkdocs" build --strict --clean
say "Open .cache/site/index.html; the search takes a server: python3 -m http.server -d .cache/site"
