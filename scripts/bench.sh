#!/usr/bin/env bash
# Runs a benchmark: bench.sh local | objects | remote | growth | mpi | heal | broadcast | rdma | scale |
# report, followed by options of the harness.
#
# Builds Plasmon first, unless PLASMON_PYTHON names an interpreter that has it already.
. "$(dirname "$0")/lib.sh"

command=${1:?local, objects, remote, growth, mpi, heal, broadcast, rdma, scale or report}
if [ "$command" = rdma ]; then
    scripts/setup.sh --rdma >&2
    build_benchmarks
    cargo test --quiet --locked --no-run "${TESTED[@]}" --test e2e
    PLASMON_BENCH=$(target_dir)/release/plasmon-bench PLASMON_GUEST_BIN=$(target_dir)/debug/plasmon-e2e-guest
    export PLASMON_BENCH PLASMON_GUEST_BIN
    scripts/bench-setup.sh harness >&2
elif [ "$command" = scale ]; then
    build_benchmarks
    PLASMON_BENCH=$(target_dir)/release/plasmon-bench
    export PLASMON_BENCH
    scripts/bench-setup.sh harness >&2
elif [ "$command" != report ]; then
    [ -n "${PLASMON_PYTHON:-}" ] || scripts/build.sh >&2
    if [ -z "${PLASMON_BENCH:-}" ]; then
        build_benchmarks
        PLASMON_BENCH=$(target_dir)/release/plasmon-bench
        export PLASMON_BENCH
    fi
    scripts/bench-setup.sh >&2
else
    scripts/bench-setup.sh harness >&2
fi

harness() { PYTHONPATH=bench .cache/bench/harness/bin/python -B -m harness "$@"; }

harness "$@"
case " $* " in
*" report "* | *" --quick "* | *" --results "*) ;;
*) harness report ;;
esac
