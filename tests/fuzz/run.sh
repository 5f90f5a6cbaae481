#!/bin/sh
# Builds every tests/fuzz/fuzz_*.c with clang's libFuzzer, ASan and UBSan, and runs each for SECONDS
# (default 60). PYTHON names the interpreter that has pylog built in place, for the seeds.
# Usage: tests/fuzz/run.sh [SECONDS] [TARGET...]
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
out=${FUZZ_OUT:-build/fuzz}
mkdir -p "$out"
flags="-std=c11 -D_GNU_SOURCE -g -O1 -pthread -Icsrc -fno-sanitize-recover=all"
[ -d "$out/seeds" ] || PYTHONPATH=. "${PYTHON:-python3}" tests/fuzz/seeds.py "$out/seeds" || true
# An archive, so that a target links only what it uses; fuzzer-no-link instruments for coverage.
rm -rf "$out/objects" "$out/libcore.a"
mkdir -p "$out/objects"
for source in csrc/*/*.c; do
    # shellcheck disable=SC2086
    ${CLANG:-clang} $flags -fsanitize=fuzzer-no-link,address,undefined -c "$source" \
        -o "$out/objects/$(echo "$source" | tr / _).o"
done
ar rcs "$out/libcore.a" "$out"/objects/*.o
targets=${*:-$(cd tests/fuzz && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')}
for target in $targets; do
    # shellcheck disable=SC2086
    ${CLANG:-clang} $flags -fsanitize=fuzzer,address,undefined "tests/fuzz/fuzz_$target.c" \
        "$out/libcore.a" -lisal -llz4 -lzstd -lsnappy -lz -lssl -lcrypto -o "$out/fuzz_$target"
    mkdir -p "$out/corpus_$target"
    seeds="$out/seeds/$target"
    [ -d "$seeds" ] || seeds=
    echo "== $target: $seconds s"
    # shellcheck disable=SC2086
    "$out/fuzz_$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 \
        -malloc_limit_mb=300 -print_final_stats=1 -artifact_prefix="$out/${target}_" \
        "$out/corpus_$target" $seeds >"$out/$target.log" 2>&1 || {
        tail -40 "$out/$target.log"
        exit 1
    }
    grep -E "stat::number_of_executed_units|stat::peak_rss_mb" "$out/$target.log"
done
