#!/usr/bin/env bash
# Runs clang-tidy over the rooms:  scripts/tidy.sh [FILE ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# clang-tidy can not read the headers that gcc precompiled, so it gets compile commands without them.
cmake --preset release -B build/tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files 'device/*.cpp' 'comm/*.cpp' 'parallel/*.cpp' 'engine/*.cpp' 'launcher/*.cpp' ':!:*/cuda/*'); fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/tidy --quiet --extra-arg=-Wno-unknown-warning-option
