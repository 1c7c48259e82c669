#!/usr/bin/env python3
"""Counts the instructions of one decode step of a small model for each format (one thread, AVX2), with callgrind, and holds them against tests/cost/instructions.csv.

  step-instructions.py PROGRAM [--update]     PROGRAM: build/release/tests/cost_decode_steps

Exit code 0: none has grown by more than 3 %. 1: one has. 77: nothing can be said, because valgrind is missing, or there are no counts of this compiler. --update
writes the counts of this compiler down. Times differ from run to run, counts do not.
"""
import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
TABLE = pathlib.Path(__file__).resolve().parent.parent / "tests" / "cost" / "instructions.csv"
ALLOWED, SKIPPED = 1.03, 77


def count(program, kind, steps):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no", "--toggle-collect=counted_steps", program, kind]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found or int(found[1]) == 0:
        raise SystemExit(f"callgrind gave no count for {kind}:\n{done.stderr}")
    return int(found[1]) // steps


def main():
    program, update = sys.argv[1], "--update" in sys.argv[2:]
    if not shutil.which("valgrind"):
        print("skipped: valgrind is not installed")
        return SKIPPED
    if " avx2 " not in pathlib.Path("/proc/cpuinfo").read_text():
        print("skipped: this processor has no AVX2")
        return SKIPPED
    compiler, steps = subprocess.run([program, "--compiler"], check=True, capture_output=True, text=True).stdout.split()
    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    known = {row["format"]: int(row["instructions"]) for row in rows if row["compiler"] == compiler}
    if not known and not update:
        print(f"skipped: {TABLE.name} has no counts of {compiler}; --update writes them")
        return SKIPPED
    counts = {kind: count(program, kind, int(steps)) for kind in FORMATS}
    grown = False
    for kind, now in counts.items():
        before = known.get(kind)
        grown = grown or before is None or now > ALLOWED * before
        print(f"{kind:<6}{now:>12} instructions a step" + (f", {100 * (now / before - 1):+.2f} %" if before else ""))
    if update:
        rows = [row for row in rows if row["compiler"] != compiler]
        rows += [{"compiler": compiler, "format": kind, "instructions": now} for kind, now in counts.items()]
        with open(TABLE, "w", newline="") as file:
            writer = csv.DictWriter(file, ["compiler", "format", "instructions"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: row["compiler"]))
        return 0
    if grown:
        print("a decode step needs over 3 % more instructions than it did, or a format is new: scripts/step-instructions.py --update if that is meant")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
