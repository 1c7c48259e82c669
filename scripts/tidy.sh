#!/usr/bin/env bash
# Runs clang-tidy over the rooms:  scripts/tidy.sh [FILE ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# clang-tidy can not read the headers that gcc precompiled, so it gets compile commands without them.
# The host code of the CUDA backend is read where CUDA's headers are; LOCKSTEP_SIMT does nothing elsewhere.
cmake --preset simt -B build/tidy -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
known=$(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/tidy/compile_commands.json)
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files 'device/*.cpp' 'comm/*.cpp' 'parallel/*.cpp' 'engine/*.cpp' 'launcher/*.cpp' | while read -r file; do [[ $known != *"/$file"* ]] || echo "$file"; done); fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/tidy --quiet --extra-arg=-Wno-unknown-warning-option
