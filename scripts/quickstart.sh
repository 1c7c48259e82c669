#!/usr/bin/env bash
# From nothing to answers: installs the packages, builds, fetches the example model, and runs a batch on two ranks. A second run takes seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }

say "packages"
scripts/install-packages.sh
say "build"
scripts/build.sh release lockstep
say "example model"
model=$(scripts/fetch-model.sh)
echo "$model"

answers=build/quickstart-answers.jsonl
run=(build/release/launcher/lockstep batch --model "$model" --tensor-parallel-size 2 --input-file examples/requests.jsonl --output-file "$answers" --overwrite --seed 1)
say "${run[*]}"
"${run[@]}"

say "the first answers ($answers)"
python3 - examples/requests.jsonl "$answers" <<'PYTHON'
import json, sys
questions, answers = ([json.loads(line) for line in open(path, encoding="utf-8")] for path in sys.argv[1:])
for question, answer in list(zip(questions, answers))[:3]:
    body = answer["response"]["body"]
    choice = body["choices"][0]
    asked = question["body"]["messages"][-1]["content"] if "messages" in question["body"] else question["body"]["prompt"]
    said = choice["message"]["content"] if "message" in choice else choice["text"]
    print(f"{answer['custom_id']}: {asked}\n  -> {said.strip()}  [{choice['finish_reason']}, {body['usage']['completion_tokens']} tokens]")
PYTHON
