#!/usr/bin/env bash
# Tests every RDMA path on a verbs device, in guests: virtual machines whose kernel has Soft-RoCE.
#
# Ends with 77 and a reason if guests cannot run here. With --pair only two hosts on one cable are tested,
# with one test for each way of using verbs. Other arguments select end-to-end tests.
. "$(dirname "$0")/lib.sh"

skip() {
    printf 'RDMA is not tested here: %s\n' "$*" >&2
    exit 77
}

[ "$(uname -m)" = x86_64 ] || skip "guests take a machine of type x86_64, this one is $(uname -m)"
reason=$(scripts/setup.sh --rdma 2>&1) || skip "$reason"
[ -n "${PLASMON_BIN:-}" ] || scripts/build.sh
export PLASMON_BIN=${PLASMON_BIN:-$VENV/bin/plasmon}

cargo test --quiet --locked --no-run "${TESTED[@]}" --test e2e
guest=$(guest_program)
status=0
reason=$("$guest" prepare 2>&1) || status=$?
case $status in
0) ;;
74) die "$reason" ;;
*) skip "$reason" ;;
esac

# in_guests SECONDS OPTION... -- CARGO-ARGUMENT...: runs cargo test, with the tests themselves in guests.
in_guests() {
    local runner=\'$guest\',\'run\',\'--seconds\',\'$1\'
    shift
    while [ "$1" != -- ]; do
        runner+=,\'$1\'
        shift
    done
    shift
    # Emulation takes whole cores, so it has a low priority.
    nice cargo test --quiet --locked --config "target.'cfg(unix)'.runner=[$runner,'--']" "$@"
}

# pair TEST...: two hosts on one cable.
pair() {
    say "Two hosts on one cable"
    in_guests 1200 --guests 2 -- "${TESTED[@]}" --test e2e -- --ignored --test-threads=1 "$@"
}

failed=0
if [ "${1:-}" = --pair ]; then
    pair rdma::pair
    exit
fi
if [ $# -gt 0 ]; then
    in_guests 1800 -- "${TESTED[@]}" --test e2e -- --include-ignored --test-threads=1 "$@" || failed=1
    exit $failed
fi
say "Fabric conformance over verbs"
PLASMON_TEST_PROVIDERS='verbs;ofi_rxm' PLASMON_TEST_SOURCE=10.77.0.1 \
    in_guests 1800 -- "${TESTED[@]}" --test conformance -- --test-threads=1 || failed=1
say "Nodes that share one device"
in_guests 1800 -- "${TESTED[@]}" --test e2e -- --ignored --test-threads=1 \
    rdma::alone rdma::doctor rdma::limits rdma::protocols rdma::regions || failed=1
pair rdma::pair rdma::link || failed=1
say "Two hosts, one of them without RDMA"
in_guests 1200 --guests 2 --no-rdma 1 -- "${TESTED[@]}" --test e2e -- --ignored --test-threads=1 \
    rdma::mixed || failed=1
say "A host with two memory nodes"
in_guests 1800 --memory-nodes 2 -- "${TESTED[@]}" --test e2e -- --ignored --test-threads=1 numa:: || failed=1
exit $failed
