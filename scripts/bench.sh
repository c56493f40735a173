#!/usr/bin/env bash
# Runs a benchmark: bench.sh local | objects | remote | growth | mpi | heal | broadcast | python | tier |
# files | rdma | scale | report | compare REVISION, followed by options of the harness.
#
# Builds Plasmon first, unless PLASMON_PYTHON names an interpreter that has it already.
. "$(dirname "$0")/lib.sh"

command=${1:?one of the benchmarks that the first lines of scripts/bench.sh name}
if [ "$command" = rdma ]; then
    scripts/setup.sh --rdma >&2
    build_benchmarks
    cargo test --quiet --locked --no-run "${TESTED[@]}" --test e2e
    PLASMON_BENCH=$(built_dir)/plasmon-bench PLASMON_GUEST_BIN=$(guest_program)
    export PLASMON_BENCH PLASMON_GUEST_BIN
elif [ "$command" = scale ]; then
    build_benchmarks
    PLASMON_BENCH=$(built_dir)/plasmon-bench
    export PLASMON_BENCH
elif [ "$command" = python ]; then
    scripts/test-python.sh --environments >&2
elif [ "$command" != report ]; then
    [ -n "${PLASMON_PYTHON:-}" ] || scripts/build.sh >&2
    if [ -z "${PLASMON_BENCH:-}" ]; then
        build_benchmarks
        PLASMON_BENCH=$(built_dir)/plasmon-bench
        export PLASMON_BENCH
    fi
    # `compare` measures no other stores.
    [ "$command" = compare ] || scripts/bench-setup.sh >&2
fi
scripts/bench-setup.sh harness >&2

harness() { PYTHONPATH=bench .cache/bench/harness/bin/python -B -m harness "$@"; }

if [ "$command" = compare ]; then
    revision=$(git rev-parse --verify "${2:?which revision this build is compared with}^{commit}")
    base=$ROOT/.cache/bench/base/$revision
    [ -d "$base" ] || git clone --quiet --shared . "$base"
    git -C "$base" checkout --quiet "$revision"
    say "Building $revision" >&2
    (cd "$base" && scripts/build.sh && build_benchmarks) >&2
    shift 2
    harness compare "$base" "$@"
    exit
fi
harness "$@"
case " $* " in
*" report "* | *" --quick "* | *" --results "*) ;;
*) harness report ;;
esac
