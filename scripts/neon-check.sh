#!/usr/bin/env bash
# The kernels of 64-bit Arm: cross-compiles the CPU device with its tests and runs those under qemu's user emulation. Every product, row op
# and attention must give the bits of the plain definitions there too. `scripts/install-packages.sh --full` brings compiler and emulator.
#   scripts/neon-check.sh [ARGUMENT OF THE TESTS ...]      e.g. --gtest_filter='*Q4_K*'
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compiler=aarch64-linux-gnu-g++
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
googletest=/usr/src/googletest/googletest
for needed in "$(command -v $compiler || true)" "$emulator" "$([ -d $googletest ] && echo yes)"; do
  [ -n "$needed" ] || { echo "neon-check: $compiler, qemu-aarch64 or $googletest is missing: scripts/install-packages.sh --full" >&2; exit 1; }
done

folder=build/neon
mkdir -p $folder
flags=(-std=c++20 -O2 -ffp-contract=off -Wall -Wextra -I. -isystem $googletest/include -I$googletest)
# Where processors are is asked of hwloc, which is not here for another architecture, and no test of these needs it.
shopt -s extglob
sources=(device/*.cpp device/cpu/!(topology).cpp tests/device/{linear,rows,attention,kv_cache}_test.cpp $googletest/src/gtest-all.cc $googletest/src/gtest_main.cc)
makefile=$folder/Makefile
{
  printf 'all: %s/tests\n' $folder
  objects=()
  for source in "${sources[@]}"; do
    object=$folder/$(echo "$source" | tr '/' '_').o
    objects+=("$object")
    printf '%s: %s\n\t%s %s -MMD -c %s -o %s\n-include %s\n' "$object" "$source" $compiler "${flags[*]}" "$source" "$object" "${object%.o}.d"
  done
  printf '%s/tests: %s\n\t%s -static %s -o %s/tests -lpthread\n' $folder "${objects[*]}" $compiler "${objects[*]}" $folder
} >$makefile
make -s -f $makefile -j"$(nproc)" all
"$emulator" -cpu max $folder/tests "$@"
