#!/usr/bin/env bash
# Runs everything that a change must pass. --all adds steps that take longer.
#
# Tests are optimised builds with assertions (the profile `checked`), as are the programs that Python and
# end-to-end tests run; with --all these are the release build, which users get.
#
# Two steps run at a time, because many of them mostly wait: when one ends, the next begins.
# PLASMON_TEST_LANES=1 runs one at a time. The output of a step is shown when it ends, but for the tests that
# passed.
[ "${1:-}" = --all ] || export PLASMON_PROFILE=checked
. "$(dirname "$0")/lib.sh"

LANES=${PLASMON_TEST_LANES:-2}
# Tests of clusters mostly wait as well.
E2E_THREADS=${PLASMON_E2E_THREADS:-$((2 * $(nproc)))}
WORK=$(mktemp -d)

# unit_test_targets: sets the arguments with which cargo tests every target of the workspace but the
# end-to-end tests. Selecting targets keeps the selection of packages, and so the features of dependencies.
unit_test_targets() {
    cargo metadata --format-version 1 --no-deps --offline | "$VENV/bin/python" -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        kind, name = target["kind"][0], target["name"]
        if package["name"] == "plasmon-python" or not target["test"] or name == "e2e":
            continue
        print("--lib" if kind == "lib" else f"--{kind}={name}")
' | sort -u
}

unit_tests() {
    local targets
    mapfile -t targets < <(unit_test_targets)
    [ ${#targets[@]} -gt 1 ] || die "There are no unit tests, which cannot be."
    # Two simulations get the same seeds every time, on both cores, for a minute of one core in all. `make
    # simulate` draws others.
    PLASMON_SIMULATE_FIRST=1 PLASMON_SIMULATE_SECONDS=15 \
        cargo test --quiet --locked --no-fail-fast "${TESTED[@]}" "${targets[@]}"
}
lints() { scripts/lint.sh --short; }
python_tests() { "$VENV/bin/pytest" -q python/tests; }
python_tests_at_length() { PLASMON_PYTHON_LONG=1 python_tests; }
code_of_pages() {
    PLASMON_PYTHON=$VENV/bin/python scripts/test-docs.sh && cargo test --quiet --locked --doc "${TESTED[@]}"
}
site() { PLASMON_BIN=$VENV/bin/plasmon scripts/docs.sh; }
benchmark_tests() {
    build_benchmarks && PLASMON_BENCH=$(built_dir)/plasmon-bench "$VENV/bin/pytest" -q bench/tests
}
benchmark_tests_at_length() { PLASMON_BENCH_LONG=1 benchmark_tests; }
end_to_end() {
    cargo build --quiet --locked "${TESTED[@]}" --example plasmon_e2e_clock &&
        PLASMON_BIN=$VENV/bin/plasmon cargo test --locked "${TESTED[@]}" --test e2e -- \
            --test-threads="$E2E_THREADS"
}
rdma() { PLASMON_BIN=$VENV/bin/plasmon scripts/test-rdma.sh --pair; }
rdma_at_length() { PLASMON_BIN=$VENV/bin/plasmon PLASMON_E2E_LONG=1 scripts/test-rdma.sh; }
end_to_end_on_loopback() { PLASMON_E2E_NETNS=0 PLASMON_E2E_LONG=1 end_to_end; }
# The simulation gets the same seeds every time; `make simulate SEEDS=10000` draws others.
simulation_at_length() { PLASMON_SIMULATE_FIRST=1 scripts/simulate.sh seeds 10000; }
# Each run has seeds of its own. They are so long since most of what they found took several rounds.
chaos_of_drawn_seeds() {
    local _ failed=0
    for _ in 1 2 3 4 5; do scripts/test-chaos.sh random 5 || failed=1; done
    return "$failed"
}
# Loom replaces the atomics of the whole crate, which therefore has a target folder of its own.
models() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$(target_dir)/loom \
        cargo test --quiet --profile checked --locked -p plasmon --lib models
}
documentation() {
    RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
        cargo doc --quiet --locked --workspace --no-deps --document-private-items
}
# The wheel of this machine's own build: `make test-door` builds everything again, for an old glibc.
wheel() { scripts/test-door.sh --local; }
demo() { "$VENV/bin/plasmon" demo; }

# Steps in the order in which they begin, each with its command and its name: long steps that wait first,
# beside those that compile.
STEPS=(
    "end_to_end end-to-end tests"
    "lints formatting, lints and types"
    "unit_tests unit tests"
    "rdma RDMA, in guests"
    "python_tests Python tests"
    "code_of_pages code of the documentation"
    "scripts/plasma-tests.sh the same on PyArrow's Plasma"
    "benchmark_tests tests of the benchmarks"
    "wheel the wheel, in an empty environment"
)
if [ "${1:-}" = --all ]; then
    STEPS=("${STEPS[@]/#rdma /rdma_at_length }")
    STEPS=("${STEPS[@]/#lints /scripts/lint.sh }")
    STEPS=("${STEPS[@]/#python_tests /python_tests_at_length }")
    STEPS=("${STEPS[@]/#benchmark_tests /benchmark_tests_at_length }")
    STEPS+=(
        "end_to_end_on_loopback end-to-end tests on loopback"
        "simulation_at_length 10,000 seeds of the simulation"
        "chaos_of_drawn_seeds five drawn seeds of chaos"
        "models loom models of shared memory"
        "documentation documentation"
        "site site of the documentation"
        "demo demo"
    )
fi

# Lines that name what failed, of cargo, of cargo with --quiet, of pytest, and of what hangs.
FAILURES='^test .* FAILED$| --- FAILED$|^FAILED |: it hangs'

# Minutes after which a step is taken to hang, and is ended, so that its output tells where.
STEP_MINUTES=50

# end_tree PROCESS: ends a process and those that it has started.
end_tree() {
    local child
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do end_tree "$child"; done
    kill "$1" 2>/dev/null || true
}

# end_late PROCESS FILE: ends a process when it hangs, and writes so to a file.
end_late() {
    sleep $((STEP_MINUTES * 60))
    echo "This has not ended after $STEP_MINUTES minutes: it hangs, and is ended." >>"$2"
    end_tree "$1"
}

# printing_to FILE COMMAND: runs the command with its output in a file, as one command for `time`.
printing_to() { ("$2") >"$1" 2>&1 </dev/null; }

# row NAME RESULT SECONDS CORE_SECONDS: prints a row of the summary.
row() { printf '  %-34s %-7s %4d s %6d core-s\n' "$@"; }

# note_core_seconds: sets core_seconds to those of all processes that have ended. In a pipe a new shell would
# tell its own.
note_core_seconds() {
    times >"$WORK/times"
    core_seconds=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int(60 * ($1 + $3) + $2 + $4) }' "$WORK/times")
}

# step COMMAND NAME: runs a step, even after a failure of another, and notes the result. Result 77 is a step
# that this machine cannot run, which has printed the reason.
step() {
    local command=$1 name=$2 start=$SECONDS result=ok status=0 log running watching user system
    log=$(mktemp "$WORK/log.XXXXXX")
    say "$name: begins"
    TIMEFORMAT='%0U %0S'
    { { time printing_to "$log" "$command"; } 2>"$log.time" || exit; } &
    running=$!
    end_late "$running" "$log" &
    watching=$!
    wait "$running" || status=$?
    end_tree "$watching"
    # Bash says of a process that was ended, unless somebody has waited for it.
    wait "$watching" 2>/dev/null || true
    case $status in
    0) ;;
    77) result=skipped ;;
    *)
        result=FAILED
        { grep -E "$FAILURES" "$log" || tail -n 5 "$log"; } >>"$WORK/failed"
        ;;
    esac
    read -r user system < <(tail -n 1 "$log.time") || true
    {
        flock 9
        say "$name: $result"
        grep -v '^test .* \.\.\. ok$' "$log" || true
        row "$name" "$result" $((SECONDS - start)) $((user + system)) | tee -a "$WORK/results"
    } 9>"$WORK/printing"
}

# next_step: prints the number of the next step, which no other lane gets.
next_step() {
    {
        flock 9
        local number
        number=$(cat "$WORK/next" 2>/dev/null || echo 0)
        echo $((number + 1)) >"$WORK/next"
        echo "$number"
    } 9>"$WORK/choosing"
}

lane() {
    local number
    # The steps of a lane belong to its process group.
    set +m
    while number=$(next_step) && [ "$number" -lt ${#STEPS[@]} ]; do
        step "${STEPS[number]%% *}" "${STEPS[number]#* }"
    done
}

# No later step can run without this one.
scripts/build.sh
note_core_seconds
build=("the build before" ok "$SECONDS" "$core_seconds")

# Each lane is a process group, so that it can be ended as a whole, and does not ignore an interrupt.
lanes=()
end() {
    for lane in "${lanes[@]}"; do kill -- "-$lane" 2>/dev/null || true; done
    rm -rf "$WORK"
}
trap end EXIT
trap 'exit 130' INT TERM
set -m
for ((number = 0; number < LANES; number++)); do
    lane </dev/null &
    lanes+=($!)
done
set +m
for lane in "${lanes[@]}"; do wait "$lane" || touch "$WORK/failed"; done
lanes=()

say "Summary"
cat "$WORK/results"
note_core_seconds
row "${build[@]}"
row all "" "$SECONDS" "$core_seconds"
sed 's/^/  /' "$WORK/failed" 2>/dev/null || true
[ ! -e "$WORK/failed" ]
