#!/usr/bin/env bash
# The whole product of the numeric contract on the tiny model: every combination of ranks, threads, sequences, chunk, instruction set, preemption, prefix caching and resume, for
# LOCKSTEP_CONTRACT_WEIGHTS (Q4_1) and LOCKSTEP_CONTRACT_KV (F16): 5,760 runs. CI runs a table in which each pair of values occurs (tests/contract/pairwise.csv).
#   scripts/contract.sh [PART PARTS]   one part of PARTS, so that processes or machines can share the work
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/build.sh release contract_contract_test
LOCKSTEP_CONTRACT=full LOCKSTEP_CONTRACT_PART=${1:-1} LOCKSTEP_CONTRACT_PARTS=${2:-1} build/release/tests/contract_contract_test --gtest_filter=Contract.*
