#!/usr/bin/env bash
# Installs the packages, builds and runs the tests. With --full also the long ones. The last line is ctest's verdict on the release build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=no
case "${1:-}" in
  --full) full=yes ;;
  "") ;;
  *) echo "usage: scripts/test.sh [--full]" >&2; exit 2 ;;
esac
say() { printf '\n== %s\n' "$*"; }

say "packages"
scripts/install-packages.sh
[ $full = no ] || scripts/install-packages.sh --full
export LOCKSTEP_EXAMPLE_MODEL
LOCKSTEP_EXAMPLE_MODEL=$(scripts/fetch-model.sh)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0} TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}

# Ranks and threads share the cores with the tests beside them, so one test a core is enough.
run_tests() {
  ctest --preset "$1" --parallel "$(nproc)" --no-tests=error "${@:2}"
}
# Address space randomisation with many bits is more than the thread sanitizer of these compilers can place.
without_randomisation() {
  if setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then setarch "$(uname -m)" --addr-no-randomize "$@"; else "$@"; fi
}
# The CUDA backend: built and run on emulated GPUs where CUDA's headers are, compiled for real ones where nvcc is.
cuda=${CUDA_HOME:-/usr/local/cuda}
final=release
[ ! -e "$cuda/include/cuda_runtime.h" ] || [ ! -e "$cuda/include/nccl.h" ] || final=simt
not_long=(--label-exclude long)
[ $full = no ] || not_long=()

# Under the sanitizers every kernel and collective runs, but not whole models and programs, which take minutes there, or more threads and memory than
# the thread sanitizer can have, and add no code to look at.
whole_models='SelectionOnGpus|Models/|OtherFamilies/|Mixtures/|Wider/|ContractOn|ProgramOnGpus|DecodeCost|FailureOnGpus|FastReduction'
# Products of every type, shape and instruction set against their definition. What the thread sanitizer has to see, how threads share a product out,
# does not depend on these, and the tests of steps, tops and contracts go through it.
arithmetic='^device\..*/LinearOf(Type|Blocks)\.'
sanitized() {  # PRESET EXCLUDED [TARGET]
  say "build for $1"
  scripts/build.sh "$1" "${@:3}"
  say "tests under $1"
  export -f run_tests
  without_randomisation bash -euc 'run_tests "$@"' run_tests "$1" --label-regex 'unit|conformance|contract-small|simt' --exclude-regex "$2"
}
sanitized asan "$whole_models"
# What has no threads has nothing for the thread sanitizer to find; programs that are not built have no tests.
sanitized tsan "$whole_models|$arithmetic" threaded_tests

if command -v "${CUDACXX:-nvcc}" >/dev/null && [ $final = simt ]; then
  say "build for GPUs"
  [ $full = yes ] || export CUDAARCHS=90-real  # each costs minutes
  scripts/build.sh cuda lockstep_cuda gpu_wrappers_test
  scripts/sass-lint.py
fi
say "build"
scripts/build.sh $final
if [ $full = yes ]; then
  say "the whole contract"
  scripts/contract.sh
  if [ $final = simt ]; then
    say "the whole contract on emulated GPUs"
    LOCKSTEP_CONTRACT=full build/simt/tests/simt_contract_test
    say "seeded bugs in the kernels"
    scripts/simt-mutants.sh
    say "the check of GPU machines, on emulated GPUs"
    GPU_CHECK_EMULATED=1 scripts/gpu-check.sh
  fi
  if [ "$(uname -m)" != aarch64 ]; then
    say "the kernels of 64-bit Arm, emulated"
    scripts/neon-check.sh --gtest_brief=1
  fi
  say "long fuzzing"
  scripts/fuzz.sh 600
fi
say "tests"
run_tests $final "${not_long[@]}"
