#!/usr/bin/env bash
# Seeds the bugs of tests/simt/mutations.txt, one by one, into a copy of the file that they are of, and runs the tests that must fail.
#   scripts/simt-mutants.sh [NAME ...]   all, or those whose names contain one of the words
# Only what includes the file is compiled again; everything else comes from the build of preset simt. Exit 1: a bug was not found, or does not
# apply any more.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
build=$root/build/simt
scratch=$root/build/simt-mutants
table=tests/simt/mutations.txt
limit=${LOCKSTEP_MUTANT_SECONDS:-300}  # a test that hangs is a bug that was found

trimmed() { sed -e 's/^[[:space:]]*//' -e 's/[[:space:]]*$//' <<<"$1"; }

wanted() {  # NAME WORDS...
  local name=$1
  shift
  [ $# -gt 0 ] || return 0
  for word in "$@"; do [[ $name != *$word* ]] || return 0; done
  return 1
}

# name | file | exact text | replacement | program:filter
read_mutation() {
  local IFS=$'\x1f' fields=()
  read -r -a fields <<<"${1// | /$'\x1f'}"
  name=$(trimmed "${fields[0]:-}") file=$(trimmed "${fields[1]:-}")
  text=$(trimmed "${fields[2]:-}") replacement=$(trimmed "${fields[3]:-}") filter=$(trimmed "${fields[4]:-}")
  program=simt_${filter%%:*} filter=${filter#*:}
  [ "${#fields[@]}" -eq 5 ]
}

# The copy with the bug, below $scratch/$name/tree.
seed() {
  local content rest
  content=$(cat "$file" && printf .) && content=${content%.}
  rest=${content#*"$text"}
  [ "$rest" != "$content" ] || { why="the text is not in $file"; return 1; }
  [ "${rest#*"$text"}" = "$rest" ] || { why="the text is more than once in $file"; return 1; }
  mkdir -p "$scratch/$name/tree/$(dirname "$file")"
  printf '%s' "${content/"$text"/"$replacement"}" >"$scratch/$name/tree/$file"
}

# Objects of the backend and of the program that the file goes into. (Its path is relative where ccache has a base folder.) dependents[OBJECT]: known for each file once.
dependents_of() {
  ninja -C "$build" -t deps 2>/dev/null | awk -v file="/$1" -v program="/$2.dir/" '
    /^[^ ].*: #deps/ { object = $1; sub(/:$/, "", object); next }
    { path = $1 }
    substr(path, length(path) - length(file) + 1) == file && (object ~ /lockstep_cuda_emulated\.dir/ || index(object, program)) { print object }' | sort -u
}

# Compiles them from the copy; the objects' paths are left in `objects`.
compile() {
  local object command number=0
  objects=()
  for object in $(dependents_of "$file" "$program"); do
    command=$(ninja -C "$build" -t commands "$object" | tail -1)
    command=${command//" -I$root "/" -I$scratch/$name/tree -I$root "}
    command=${command//" -o $object "/" -o $scratch/$name/$number.o "}
    command=${command//"$object.d"/"$scratch/$name/$number.d"}
    command=${command//"-c $root/$file"/"-c $scratch/$name/tree/$file"}
    (cd "$build" && eval "$command") >"$scratch/$name/compile.log" 2>&1 || { why="does not compile: $scratch/$name/compile.log"; return 1; }
    objects+=("$object=$scratch/$name/$number.o")
    number=$((number + 1))
  done
  [ ${#objects[@]} -gt 0 ] || { why="nothing that $program is made of includes $file"; return 1; }
}

# The program, with the new objects before the library that has the old ones.
link() {
  local command pair extra=""
  command=$(ninja -C "$build" -t commands "tests/$program" | tail -1)
  for pair in "${objects[@]}"; do
    if [[ $command == *" ${pair%%=*} "* ]]; then
      command=${command//" ${pair%%=*} "/" ${pair#*=} "}
    else
      extra+=" ${pair#*=}"
    fi
  done
  command=${command//" -o tests/$program "/" -o $scratch/$name/$program $extra "}
  (cd "$build" && eval "$command") >"$scratch/$name/link.log" 2>&1 || { why="does not link: $scratch/$name/link.log"; return 1; }
}

declare -A healthy=()
is_healthy() {  # the filter names tests, and they pass without the bug
  local log=$scratch/healthy.log
  if [ -z "${healthy[$program:$filter]:-}" ]; then
    timeout "$limit" "$build/tests/$program" --gtest_filter="$filter" --gtest_brief=1 >"$log" 2>&1 && ! grep -q "Running 0 tests" "$log" &&
      healthy[$program:$filter]=yes || healthy[$program:$filter]=no
  fi
  [ "${healthy[$program:$filter]}" = yes ]
}

# Stops at the first failure. The second command keeps the shell from becoming the program, whose end by a signal it would announce.
run() (
  cd "$build/tests" || exit 1
  timeout "$limit" "$scratch/$name/$program" --gtest_filter="$filter" --gtest_break_on_failure --gtest_catch_exceptions=0
  exit $?
)

mkdir -p "$scratch"
mapfile -t lines < <(grep -v -e '^[[:space:]]*#' -e '^[[:space:]]*$' "$table")
programs=()
for line in "${lines[@]}"; do
  read_mutation "$line" || { echo "not five fields: $line"; exit 1; }
  ! wanted "$name" "$@" || programs+=("$program")
done
scripts/build.sh simt $(printf '%s\n' "${programs[@]}" | sort -u) >"$scratch/build.log" 2>&1 || { tail -20 "$scratch/build.log"; exit 1; }

found=0 missed=()
for line in "${lines[@]}"; do
  read_mutation "$line"
  wanted "$name" "$@" || continue
  why="" begin=$SECONDS
  rm -rf "${scratch:?}/$name"
  if ! is_healthy; then
    why="$program --gtest_filter=$filter fails without the bug, or has no tests"
  elif seed && compile && link; then
    run >"$scratch/$name/run.log" 2>&1 && why="not found"
  fi
  if [ -z "$why" ]; then
    found=$((found + 1))
    printf 'found   %-40s %3d s\n' "$name" $((SECONDS - begin))
    rm -rf "${scratch:?}/$name"
  else
    missed+=("$name")
    printf 'MISSED  %-40s %s\n' "$name" "$why"
  fi
done
echo "$found of $((found + ${#missed[@]})) seeded bugs found"
[ ${#missed[@]} -eq 0 ]
