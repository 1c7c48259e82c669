#!/usr/bin/env bash
# Checks the CUDA backend on a machine with GPUs, in under ten minutes: the PTX wrappers, every op against the CPU device, the golden models, the
# numeric contract over batches, chunks, graphs and ranks, and the speed against what the GPUs give in the same run.
#   scripts/gpu-check.sh
# Writes report.md, report.json and the log of every step to $OUT, or to build/gpu-check. A step that fails or takes too long is reported, and the
# others go on. Exit status: 0 all passed, 1 something failed, 2 there is nothing to check with (no GPU, no nvcc).
#   GPU_CHECK_MODEL=FILE      the model that is measured, in place of one with random weights and layers of Llama-3-8B (3.5 GB, made on the spot)
#   GPU_CHECK_SECONDS=600     time for all
#   GPU_CHECK_EMULATED=1      emulated GPUs in place of real ones: a test of this script
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

emulated=${GPU_CHECK_EMULATED:-0}
out=${OUT:-build/gpu-check}
mkdir -p "$out/logs" || exit 1
out=$(cd "$out" && pwd)
rm -f "$out"/{steps,wrappers,device,models,contract,report}.json "$out"/bench-*.json "$out"/report.md
deadline=$((SECONDS + ${GPU_CHECK_SECONDS:-600}))
say() { printf '\n== %s\n' "$*"; }
refuse() {
  echo "gpu-check: $*" >&2
  exit 2
}

failed=0
# step NAME SECONDS COMMAND...: runs it with a time limit; its output goes to a log, its result to steps.json.
step() {
  local name=$1 limit=$2 began=$SECONDS status=0 left=$((deadline - SECONDS))
  shift 2
  say "$name"
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -le 0 ]; then
    echo "no time is left" >"$out/logs/$name.log"
    status=124
  else
    timeout --kill-after=5 "$limit" "$@" >"$out/logs/$name.log" 2>&1 || status=$?
  fi
  [ "$status" -eq 0 ] || failed=1
  case $status in
    0) echo "passed, $((SECONDS - began)) s" ;;
    124 | 137) echo "took longer than $limit s" && tail -n 3 "$out/logs/$name.log" ;;
    *) echo "failed with status $status" && tail -n 15 "$out/logs/$name.log" ;;
  esac
  printf '{"name": "%s", "status": %d, "seconds": %d}\n' "$name" "$status" $((SECONDS - began)) >>"$out/steps.json"
  return "$status"
}

# tests NAME SECONDS PROGRAM [FILTER]: a test program. One that skips everything has shown nothing.
tests() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  step "$1" "$2" bash -c '"$1" --gtest_filter="$3" --gtest_output="json:$2" && python3 - "$2" <<"PYTHON"
import json, sys
results = [test["result"] for suite in json.load(open(sys.argv[1]))["testsuites"] for test in suite["testsuite"]]
sys.exit(0 if "COMPLETED" in results else "every test was skipped")
PYTHON' tests "$tree/tests/$3" "$out/$1.json" "${4:-*}"
}

# bench RANKS REDUCTION: latency and throughput. The JSON line of the program goes to bench-RANKS-REDUCTION.json.
bench() {
  # shellcheck disable=SC2016
  step "bench-$1-$2" 60 bash -c 'set -o pipefail; out=$1; shift; "$@" | tee "$out"' bench "$out/bench-$1-$2.json" \
    "$program" bench --json --model "$model" --device cuda --tensor-parallel-size "$1" --reduction "$2" "${how[@]}" "${sizes[@]}"
}

# ---------------------------------------------------------------------------------------------------------------- what there is
if [ "$emulated" = 1 ]; then
  gpus=2
  machine="emulated GPUs"
  tree=build/simt
  build=(scripts/build.sh simt lockstep lockstep_cuda_emulated_plugin gpu_tests)
  export LOCKSTEP_CUDA_PLUGIN=$PWD/$tree/tests/simt/liblockstep_cuda_emulated_plugin.so
  printf '%s\n' "$machine" >"$out/logs/machine.log"
else
  nvcc=${CUDACXX:-$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")}
  command -v "$nvcc" >/dev/null || refuse "there is no nvcc ($nvcc); docs/install.md says where CUDA comes from"
  command -v nvidia-smi >/dev/null || refuse "there is no GPU to check: no nvidia-smi on this machine"
  gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -c '^[0-9]')
  [ "$gpus" -ge 1 ] || refuse "there is no GPU to check: $(nvidia-smi 2>&1 | head -n 1)"
  [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(awk -F, '{ print NF }' <<<"$CUDA_VISIBLE_DEVICES")
  machine=$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | awk '{ $1 = $1 " x"; print }' | paste -sd ';')
  {
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.mem --format=csv
    nvidia-smi topo -m
    "$nvcc" --version
    lscpu | grep -E 'Model name|^CPU\(s\)|NUMA node'
  } >"$out/logs/machine.log" 2>&1
  # A tree of its own, for the GPUs that are here alone: a build for all takes longer than this script may.
  tree=build/gpu-check/tree
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u | tr -d '. ' | sed 's/$/-real/' | paste -sd ';')
  # shellcheck disable=SC2016
  build=(bash -euc 'cmake --preset cuda -B "$1" -DCMAKE_CUDA_ARCHITECTURES="$2" -DCMAKE_CUDA_COMPILER="$3" -DLOCKSTEP_BUILD_BENCH=OFF
    cmake --build "$1" --parallel "$(nproc)" --target lockstep lockstep_cuda gpu_tests' build "$tree" "$architectures" "$nvcc")
  export LOCKSTEP_CUDA_PLUGIN=$PWD/$tree/liblockstep_cuda.so
fi
models='*'
[ "$emulated" = 0 ] || models='*llama_gqa_bf16_gpus1:*llama_gqa_bf16_gpus2:*Q4_1_gpus2' # the emulator is slow
program=$PWD/$tree/launcher/lockstep
how=(--comm auto)
command -v "${LOCKSTEP_MPIRUN:-mpirun}" >/dev/null || how=(--comm threads)
say "$machine"
cat "$out/logs/machine.log"

# ---------------------------------------------------------------------------------------------------------------- checks
if step build 360 "${build[@]}"; then
  tests wrappers 60 gpu_wrappers_test
  tests device 120 gpu_device_test
  tests models 120 gpu_model_test "$models"
  tests contract 120 gpu_contract_test

  model=${GPU_CHECK_MODEL:-$out/model.gguf}
  sizes=(--input-len 2048 --output-len 128 --num-prompts 64 --max-num-batched-tokens 2048 --max-prefill-chunk 2048)
  [ "$emulated" = 0 ] || sizes=(--input-len 8 --output-len 4 --num-prompts 2 --iterations 1 --warmup 0 --kv-cache-memory 16M)
  [ "$emulated" = 0 ] || model=${GPU_CHECK_MODEL:-tests/data/models/llama-gqa-bf16}
  made=0
  [ -e "$model" ] || { step model 90 "$tree/tests/gpu_make_model" "$model" && made=1; }
  ranks=1
  while [ "$ranks" -le "$gpus" ] && [ -e "$model" ]; do
    bench "$ranks" canonical
    bench "$ranks" fast # ncclAllReduce and cuBLASLt in place of our own
    ranks=$((ranks * 2))
  done
  [ "$made" = 0 ] || rm -f "$model"
  if [ "$gpus" -ge 2 ]; then
    # shellcheck disable=SC2016
    step bench-comm 90 bash -c 'set -o pipefail; out=$1; shift; "$@" | tee "$out"' bench "$out/bench-comm.json" \
      "$program" bench comm --json --device cuda --tensor-parallel-size "$gpus" "${how[@]}" --comm-tuning "$out/comm-tuning.txt"
  fi
fi

# ---------------------------------------------------------------------------------------------------------------- report
commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
python3 scripts/gpu-report.py "$out" "$machine" "$commit" || failed=1
say "$out/report.md"
cat "$out/report.md"
exit $failed
