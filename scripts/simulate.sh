#!/usr/bin/env bash
# Runs the simulation of clusters in one process, and builds what it needs: simulate.sh seed N runs one seed,
# simulate.sh seconds N runs drawn ones for so long, and simulate.sh seeds N so many of them.
. "$(dirname "$0")/lib.sh"

case ${1:-} in
seed) export PLASMON_SIMULATE_SEED=${2:?a number} ;;
seconds) export PLASMON_SIMULATE_SECONDS=${2:?how many} ;;
seeds) export PLASMON_SIMULATE_SEEDS=${2:?how many} ;;
*) die "Say \`seed N\`, \`seconds N\` or \`seeds N\`." ;;
esac
cargo test --quiet --profile checked --locked -p plasmon-node --lib -- --nocapture --exact \
    engine::simulation::tests::what_is_promised_holds_for_every_seed \
    engine::simulation::foreign_bytes::no_byte_of_another_region_is_read_or_written
