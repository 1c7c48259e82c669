#!/usr/bin/env bash
# Lockstep beside llama.cpp and CTranslate2, in alternation, on the same files and threads. Run by hand, on a machine that does nothing else:
#   scripts/bench-peers.sh [--threads 2] [--rounds 5] [--shape-1b] [--quick]
# Installs llama-cpp-python and ctranslate2 with pip into a folder that goes afterwards; LOCKSTEP_PEERS=FOLDER keeps it, with the models made there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${LOCKSTEP_PEERS:-}
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"
python=$folder/venv/bin/python
[ -x "$python" ] || python3 -m venv "$folder/venv"
"$python" -m pip install --quiet numpy llama-cpp-python ctranslate2
scripts/build.sh release lockstep >&2
"$python" scripts/bench-peers.py --model "$(scripts/fetch-model.sh)" --folder "$folder" --lockstep build/release/launcher/lockstep "$@"
