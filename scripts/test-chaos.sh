#!/usr/bin/env bash
# Runs the chaos test: test-chaos.sh SEED MINUTES. Builds what it needs. The logs of a failed run are in
# target/chaos. Its output ends with its first panic, since later ones follow from that.
. "$(dirname "$0")/lib.sh"

# first_panic FILE: prints the first panic in an output, without the stack.
first_panic() {
    awk '/ panicked at / { found = 1 } found && /^(stack backtrace:|note: run with)/ { exit } found' "$1"
}

seed=${1:?a number, or random} minutes=${2:?how many}
[ "$seed" != random ] || seed=$((RANDOM * 32768 + RANDOM))
cargo build --quiet --locked "${TESTED[@]}" --bin plasmon --bin plasmon-node --example plasmon_e2e_clock
PLASMON_CHAOS_LOGS=$(target_dir)/chaos
export PLASMON_CHAOS_SEED=$seed PLASMON_CHAOS_MINUTES=$minutes PLASMON_CHAOS_LOGS
say "Chaos of seed $seed for about $minutes minutes"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
cargo test --quiet --locked "${TESTED[@]}" --test e2e -- --nocapture chaos::breaks 2>&1 | tee "$output" ||
    die "It failed. Again: make test-chaos SEED=$seed MINUTES=$minutes" \
        "Its logs and journal: $PLASMON_CHAOS_LOGS" "Its first panic:" \
        "$(first_panic "$output")"
