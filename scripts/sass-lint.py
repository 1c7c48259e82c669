#!/usr/bin/env python3
"""Looks at the machine code of every kernel of the CUDA plug-in, without a GPU:

    scripts/sass-lint.py [build/cuda/liblockstep_cuda.so] [--list]

Each kernel must have a row in scripts/sass-lint.txt, which says what instructions it must have and how many registers it may use; none may touch local
memory (spilled registers, arrays that are indexed at run time). cuobjdump is taken from PATH, or from NVIDIA's Python package in the cache folder."""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm")  # cuobjdump calls nvdisasm
FORBIDDEN = ("LDL", "STL")


def tool_environment():
    """The environment in which `cuobjdump` and `nvdisasm` are found."""
    if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
        return dict(os.environ)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lockstep" / "cuobjdump"
    if not (cache / "cuobjdump").exists() or not (cache / "nvdisasm").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as download:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", download, *PACKAGES], check=True)
            for wheel in Path(download).glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    for member in archive.namelist():
                        if Path(member).name in ("cuobjdump", "nvdisasm"):
                            target = cache / Path(member).name
                            target.write_bytes(archive.read(member))
                            target.chmod(0o755)
    return dict(os.environ, PATH=f"{cache}{os.pathsep}{os.environ['PATH']}")


def read_table(path):
    """[(pattern of the name, most registers, instructions that must be there)]"""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        pattern, registers, *instructions = line.split()
        if not registers.isdigit():
            sys.exit(f"{path.name}:{number}: '{registers}' is not a number of registers")
        rows.append((re.compile(pattern), int(registers), [re.compile(i) for i in instructions]))
    return rows


def demangle(names):
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(names, plain))


def dumped_lines(option, library, environment):
    """Lines of cuobjdump's output, each with the architecture that it is about."""
    text = subprocess.run(["cuobjdump", option, library], capture_output=True, text=True, check=True, env=environment).stdout
    architecture = "?"
    for line in text.splitlines():
        if found := re.search(r"arch = (sm_\w+)", line):
            architecture = found[1]
        else:
            yield architecture, line


def registers_of(library, environment):
    """{(architecture, mangled name): (registers, stack bytes)}"""
    usage, name = {}, None
    for architecture, line in dumped_lines("-res-usage", library, environment):
        if found := re.search(r"Function (\S+?):", line):
            name = found[1]
        elif found := re.search(r"REG:(\d+) STACK:(\d+)", line):
            usage[architecture, name] = (int(found[1]), int(found[2]))
    return usage


def instructions_of(library, environment):
    """{(architecture, mangled name): Counter of opcodes with their suffixes}"""
    code, counter = {}, None
    for architecture, line in dumped_lines("-sass", library, environment):
        if found := re.search(r"Function : (\S+)", line):
            counter = code.setdefault((architecture, found[1]), collections.Counter())
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", line):
            counter[found[1]] += 1
    return code


def faults_of(name, counter, usage, table):
    registers, stack = usage
    row = next((row for row in table if row[0].search(name)), None)
    if row is None:
        yield "no row in scripts/sass-lint.txt"
        return
    if registers > row[1]:
        yield f"{registers} registers, {row[1]} are allowed"
    for wanted in row[2]:
        if not any(wanted.match(opcode) for opcode in counter):
            yield f"no {wanted.pattern}"
    for opcode in counter:
        if opcode.split(".")[0] in FORBIDDEN:
            yield f"{counter[opcode]} {opcode}: local memory ({stack} bytes of stack)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default=ROOT / "build/cuda/liblockstep_cuda.so", type=Path)
    parser.add_argument("--list", action="store_true", help="print registers and the memory and tensor instructions of every kernel")
    arguments = parser.parse_args()
    if not arguments.library.exists():
        sys.exit(f"sass-lint: {arguments.library} is not there: scripts/build.sh cuda lockstep_cuda")
    environment = tool_environment()
    table = read_table(ROOT / "scripts/sass-lint.txt")
    usage, code = registers_of(arguments.library, environment), instructions_of(arguments.library, environment)
    names = demangle(sorted({name for _, name in code}))
    found, used = 0, set()
    for (architecture, mangled), counter in sorted(code.items()):
        name = names[mangled]
        short = re.sub(r"\(.*", "", re.sub(r"lockstep::\w+::cuda::", "", name)).removeprefix("void ")
        used |= {row[0].pattern for row in table if row[0].search(name)}
        if arguments.list:
            kinds = {o: n for o, n in counter.items() if re.match(r"LDG|STG|LDS|STS|HMMA|LDL|STL", o)}
            print(f"{architecture} {usage.get((architecture, mangled), (0, 0))[0]:4} {short}  {kinds}")
        for fault in faults_of(name, counter, usage.get((architecture, mangled), (0, 0)), table):
            found += 1
            print(f"sass-lint: {architecture} {short}: {fault}")
    for row in table:
        if row[0].pattern not in used:
            found += 1
            print(f"sass-lint: no kernel is called {row[0].pattern}")
    print(f"sass-lint: {len(code)} kernels of {len({a for a, _ in code})} architectures, {found} faults")
    return 1 if found or not code else 0


if __name__ == "__main__":
    sys.exit(main())
