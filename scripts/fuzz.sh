#!/usr/bin/env bash
# scripts/fuzz.sh SECONDS: runs libFuzzer on every decoder of untrusted bytes, for SECONDS in total.
#
# libFuzzer observes which code the bytes reach, by LLVM's coverage instrumentation, which the stable
# toolchain has as well. Its corpus is kept in .cache/fuzz. Bytes that break a target end the run and are left
# in fuzz/found. With the fix they go to fuzz/regressions, which the tests of the crate run. The crate's own
# tests, a part of `cargo test`, give every target thousands of damaged seeds without instrumentation.
. "$(dirname "$0")/lib.sh"

scripts/setup.sh --fuzz

seconds=${1:-60}
target_triple=$(rustc -vV | sed -n 's/^host: //p')
out=$(target_dir)/fuzz
corpus=$ROOT/.cache/fuzz

say "Building the fuzzer"
mkdir -p "$corpus"
cargo run --quiet --locked -p plasmon-fuzz -- seeds "$corpus/seeds" >"$corpus/targets"
# With --target, build scripts and macros are built without instrumentation.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
    CARGO_TARGET_DIR=$out CARGO_PROFILE_DEV_OPT_LEVEL=2 \
    cargo build --quiet --locked --target "$target_triple" -p plasmon-fuzz

mapfile -t targets <"$corpus/targets"
for name in "${targets[@]}"; do
    say "$name"
    mkdir -p "$corpus/$name" fuzz/found/"$name"
    # The inputs that once broke the target are run as well.
    known=("$corpus/seeds/$name")
    [ -d fuzz/regressions/"$name" ] && known+=(fuzz/regressions/"$name")
    # The advice of libFuzzer to its users is left out.
    PLASMON_FUZZ=$name "$out/$target_triple/debug/plasmon-fuzz" \
        -max_total_time=$((seconds / ${#targets[@]} + 1)) \
        -max_len=16384 -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
        -artifact_prefix=fuzz/found/"$name"/ "$corpus/$name" "${known[@]}" 2>&1 |
        { grep -Ev '^"|ecommended dictionary|^WARNING: Failed to find function' || true; }
done
find fuzz/found -type d -empty -delete
