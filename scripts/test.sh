#!/usr/bin/env bash
# Everything a change must pass. --all adds what takes longer.
#
# Unit tests run as debug builds, with their assertions; Python and the end-to-end tests run against the
# release build, which is what people get.
. "$(dirname "$0")/lib.sh"

RESULTS=()
FAILED=0

# step NAME COMMAND...: runs it, whatever became of the steps before, and notes the result: 77 is a step that this
# machine cannot do, and said why.
step() {
    local name=$1 start=$SECONDS result=ok status=0
    shift
    say "$name"
    "$@" || status=$?
    case $status in
    0) ;;
    77) result=skipped ;;
    *) result=FAILED FAILED=1 ;;
    esac
    RESULTS+=("$(printf '  %-34s %-7s %4d s' "$name" "$result" $((SECONDS - start)))")
}

unit_tests() { cargo test --quiet --locked --workspace --exclude plasmon-python --exclude plasmon-e2e; }
python_tests() { "$VENV/bin/pytest" -q python/tests; }
benchmark_tests() {
    cargo build --quiet --release --locked -p plasmon-bench &&
        PLASMON_BENCH=$(target_dir)/release/plasmon-bench "$VENV/bin/pytest" -q bench/tests
}
end_to_end() { PLASMON_BIN=$VENV/bin/plasmon cargo test --locked -p plasmon-e2e; }
rdma() { PLASMON_BIN=$VENV/bin/plasmon scripts/test-rdma.sh; }
rdma_at_length() { PLASMON_E2E_LONG=1 rdma; }
end_to_end_on_loopback() { PLASMON_E2E_NETNS=0 PLASMON_E2E_LONG=1 end_to_end; }
# Loom replaces the atomics of the whole crate: it has a target folder of its own.
models() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(target_dir)/loom \
        cargo test --quiet --release --locked -p plasmon --lib models
}
documentation() { RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --quiet --locked --workspace --no-deps --document-private-items; }
demo() { "$VENV/bin/python" examples/flights/flights.py; }

# Nothing below can run without it.
scripts/build.sh

step "formatting, lints and types" scripts/lint.sh
step "unit tests" unit_tests
step "Python tests" python_tests
step "the same on PyArrow's Plasma" scripts/plasma-tests.sh
step "tests of the benchmarks" benchmark_tests
step "end-to-end tests" end_to_end
if [ "${1:-}" = --all ]; then step "RDMA, in guests" rdma_at_length; else step "RDMA, in guests" rdma; fi
if [ "${1:-}" = --all ]; then
    step "end-to-end tests on loopback" end_to_end_on_loopback
    step "loom models of shared memory" models
    step "documentation" documentation
    step "demo" demo
fi

say "Summary"
printf '%s\n' "${RESULTS[@]}"
exit $FAILED
