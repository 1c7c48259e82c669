#!/usr/bin/env python3
"""Makes report.md and report.json of what scripts/gpu-check.sh left in a folder:  gpu-report.py FOLDER MACHINE COMMIT"""
import json
import pathlib
import sys
import time


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def counts_of(results):
    """Tests by result: {"COMPLETED": 12, "SKIPPED": 3, "FAILED": 1}."""
    counts = {}
    for suite in results["testsuites"]:
        for test in suite["testsuite"]:
            result = "FAILED" if test.get("failures") else test["result"]
            counts[result] = counts.get(result, 0) + 1
    return counts


def steps_of(folder):
    steps = [json.loads(line) for line in (folder / "steps.json").read_text(encoding="utf-8").splitlines()]
    for step in steps:
        step["passed"] = step["status"] == 0
        results = read_json(folder / f"{step['name']}.json")
        if results is not None and "testsuites" in results:
            step["tests"] = counts_of(results)
        if not step["passed"]:
            log = folder / "logs" / f"{step['name']}.log"
            step["log"] = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
    return steps


def percent(share):
    return f"{100 * share:.0f} %"


def bench_table(benches):
    lines = ["| GPUs | --reduction | prefill tok/s | of cuBLASLt's bf16 peak | decode tok/s | GB/s | of the measured HBM bandwidth | batch tok/s |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for bench in benches:
        peak = percent(bench["share_of_peak"]) if "share_of_peak" in bench else "-"
        read = bench["decode_tok_s"] * bench["bytes_per_token"] * 1e-9
        lines.append(f"| {bench['ranks']} | {bench['reduction']} | {bench['prefill_tok_s']:.0f} | {peak} | {bench['decode_tok_s']:.1f} | {read:.0f} | "
                     f"{percent(bench['share_of_roofline'])} of {bench['memory_bandwidth'] * 1e-9:.0f} GB/s | {bench['batch_tok_s']:.0f} |")
    return lines


def comm_table(comm):
    names = list(comm["seconds"])
    lines = ["Microseconds of an all_reduce (GB/s of the sum):", "", "| bytes | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for i, size in enumerate(comm["bytes"]):
        seconds = [comm["seconds"][name][i] for name in names]
        if any(seconds):
            cells = [f"{1e6 * s:.1f} ({1e-9 * size / s:.2f})" if s else "-" for s in seconds]
            lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines + ["", "For `--comm-tuning`:", "", "```", comm.get("table", "").rstrip(), "```"]


def markdown(report):
    lines = ["# GPU check", "", f"{report['machine']}, commit {report['commit']}, {report['time']}: "
             + ("**all passed**" if report["passed"] else "**failed**"), "", "| step | result | seconds | tests |", "| --- | --- | --- | --- |"]
    for step in report["steps"]:
        result = "passed" if step["passed"] else "too late" if step["status"] in (124, 137) else f"failed ({step['status']})"
        tests = ", ".join(f"{count} {name.lower()}" for name, count in sorted(step.get("tests", {}).items()))
        lines.append(f"| {step['name']} | {result} | {step['seconds']} | {tests} |")
    if report["bench"]:
        lines += ["", "## Speed", ""] + bench_table(report["bench"])
    if report["comm"] is not None:
        lines += ["", "## Sums between GPUs", ""] + comm_table(report["comm"])
    for step in report["steps"]:
        if not step["passed"]:
            lines += ["", f"## The end of {step['name']}'s log", "", "```", *step["log"], "```"]
    lines += ["", "## Machine", "", "```", report["details"].rstrip(), "```", ""]
    return "\n".join(lines)


def main():
    folder, machine, commit = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    steps = steps_of(folder)
    benches = [bench for bench in (read_json(path) for path in folder.glob("bench-*.json")) if bench and "decode_tok_s" in bench]
    report = {
        "machine": machine,
        "commit": commit,
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "passed": all(step["passed"] for step in steps),
        "steps": steps,
        "bench": sorted(benches, key=lambda bench: (bench["ranks"], bench["reduction"])),
        "comm": read_json(folder / "bench-comm.json"),
        "details": (folder / "logs" / "machine.log").read_text(encoding="utf-8", errors="replace"),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")


main()
