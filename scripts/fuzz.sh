#!/usr/bin/env bash
# Fuzzes every parser with libFuzzer under the address and undefined-behaviour sanitizers (needs clang):  scripts/fuzz.sh [SECONDS_EACH]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-60}
if ! command -v clang++ >/dev/null; then
  echo "fuzz.sh: clang++ is missing (packages clang and, on Debian, libclang-rt-14-dev)" >&2
  exit 1
fi
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm  # some parsers read files, which are made anew for each input
targets=()
for source in tests/fuzz/fuzz_*.cpp; do targets+=("$(basename "$source" .cpp)"); done
scripts/build.sh fuzz "${targets[@]}"
for target in "${targets[@]}"; do
  found=build/fuzz/found/$target
  mkdir -p "$found"
  printf '\n== %s, %s s\n' "$target" "$seconds"
  # What is found goes to the build folder; a fault leaves its input there and ends the script.
  build/fuzz/tests/fuzz/"$target" -max_total_time="$seconds" -rss_limit_mb=4096 -malloc_limit_mb=2048 -timeout=25 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="$found/" "$found" tests/fuzz/corpus/"${target#fuzz_}"
done
