#!/usr/bin/env bash
# Runs clang-tidy over the rooms, with the compile commands of the release build:  scripts/tidy.sh [FILE ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files 'device/*.cpp' 'comm/*.cpp' 'parallel/*.cpp' 'engine/*.cpp' 'launcher/*.cpp'); fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/release --quiet
