#!/usr/bin/env python3
"""The table of docs/goldens.md: how far each model is off the reference, at most, over all prompts, positions and numbers of ranks.

  scripts/build.sh release golden_golden_test golden_score_golden_test golden_beam_golden_test
  LOCKSTEP_GOLDENS=FOLDER scripts/golden-table.py [--update]

runs the golden tests, takes what they record, and prints the table, or puts it into the document. Fails where a test does.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "goldens.md"
BEGIN, END = "<!-- scripts/golden-table.py -->\n", "<!-- end -->\n"
COLUMNS = {  # as recorded: as shown
    "logits": "logits",
    "hidden_states": "hidden states",
    "rotary_tables": "rotary tables",
    "perplexity": "perplexity",
    "beam_scores": "beam scores",
}


def records():
    """(model, recorded values) of each test."""
    programs = ["golden_golden_test", "golden_score_golden_test", "golden_beam_golden_test"]
    for program in programs:
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            command = [ROOT / "build" / "release" / "tests" / program, "--gtest_brief=1", f"--gtest_output=json:{report.name}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
            for suite in json.load(report)["testsuites"]:
                for test in suite["testsuite"]:
                    if "model" in test:
                        yield test["model"], {key: test[key] for key in COLUMNS if key in test}


def table():
    largest = {}
    for model, values in records():
        row = largest.setdefault(model, {})
        for key, text in values.items():
            if key not in row or float(text) > float(row[key]):
                row[key] = text
    lines = ["| model | " + " | ".join(COLUMNS.values()) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    lines += [f"| {model} | " + " | ".join(row.get(key, "") for key in COLUMNS) + " |" for model, row in sorted(largest.items())]
    return "\n".join(lines) + "\n"


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--update"]):
        sys.exit(__doc__)
    if arguments and "LOCKSTEP_GOLDENS" not in os.environ:
        sys.exit("golden-table.py: --update needs the whole set of reference data: LOCKSTEP_GOLDENS=FOLDER")
    made = table()
    if not arguments:
        print(made, end="")
        return
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + made + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
