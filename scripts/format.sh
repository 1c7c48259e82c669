#!/usr/bin/env bash
# Checks the format of every source against .clang-format; with --fix, brings it into shape.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
git ls-files -z '*.h' '*.cpp' '*.inl' '*.cu' '*.cuh' | xargs -0 clang-format "${mode[@]}"
