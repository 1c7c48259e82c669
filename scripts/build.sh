#!/usr/bin/env bash
# Builds a preset of CMakePresets.json:  scripts/build.sh PRESET [TARGET ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With precompiled headers ccache has to be told that macros and times are not to matter.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
preset=$1
shift
options=()
command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake --preset "$preset" "${options[@]}" >/dev/null
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
# A compiler may need 2 GB for the largest files.
jobs=$(nproc)
by_memory=$(awk '/MemAvailable/ { print int($2 / 2000000) }' /proc/meminfo)
[ "$by_memory" -ge "$jobs" ] || jobs=$((by_memory > 1 ? by_memory : 1))
cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
