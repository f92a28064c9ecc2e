#!/usr/bin/env python3
"""Keeps the house in order: who may include whom, where vendor headers live, how long files are and what they are called.

usage: tools/check_layers.py [ROOT]     prints file:line: what is wrong; exit code 1 if anything is
"""
import re
import sys
from pathlib import Path

# Folder of weft/ -> the folders it may include, beside itself and base. device and comm mean their interfaces: the
# headers directly in weft/device/ and weft/comm/, and weft/device/operations/. Their other subfolders are leaves
# (LEAF_SEES) and apps/ alone names them.
SEES = {
    "base": "", "pattern": "", "grid": "", "device": "",
    "comm": "device",
    "model": "pattern grid device",
    "plan": "pattern grid model",
    "optim": "grid model device",
    "checkpoint": "grid model device",
    "data": "grid",
    "execute": "plan model optim device comm",
    "train": "pattern grid device comm model plan optim checkpoint data execute",
}
LEAF_SEES = {"device": "device", "comm": "device comm"}
INTERFACE = ("weft", "device", "operations")  # a folder, not a leaf: the table's arguments, one header a family
LEAF_ALSO_SEES = {"comm/nccl": "device/cuda"}
VENDOR = [  # header, the leaves that may include it
    (re.compile(r"(cuda|cublas|cudnn|cub/|cutlass/|cute/|thrust/|nvtx|nvToolsExt|cooperative_groups)"),
     "device/cuda comm/nccl"),
    (re.compile(r"nccl"), "comm/nccl"),
    (re.compile(r"mpi(\.h|-ext\.h|cxx\.h)$"), "comm/mpi"),
]
TOP = {"weft": "weft", "apps": "weft apps", "tests": "weft apps tests bench", "bench": "weft apps tests bench"}
BANNED_WORDS = {"util", "utils", "helper", "helpers", "misc", "common"}
LONGEST = 500
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def folder_of(path):
    """'weft/model/layers/mlp.h' -> 'model'; 'weft/device/cpu/kernels/x.h' -> 'device/cpu'; 'apps/...' -> 'apps'."""
    parts = Path(path).parts
    if parts[0] != "weft":
        return parts[0]
    if parts[1] in LEAF_SEES and len(parts) > 3 and parts[:3] != INTERFACE:
        return f"{parts[1]}/{parts[2]}"
    return parts[1]


def visible(folder):
    """The folders that a folder of weft/ may include."""
    top = folder.split("/")[0]
    if "/" in folder:
        return {"base", folder, *LEAF_SEES[top].split(), *LEAF_ALSO_SEES.get(folder, "").split()}
    return {"base", folder, *SEES[folder].split()}


def include_fault(path, quote, header):
    top, folder = Path(path).parts[0], folder_of(path)
    for vendor, leaves in VENDOR:
        if vendor.match(header) and top in ("weft", "apps") and folder not in leaves.split():
            return f"'{folder}' may not include <{header}>: only {leaves.replace(' ', ' and ')} may"
    if quote == "<":
        return None
    target = Path(header).parts[0]
    if target not in TOP:
        return f"write \"{header}\" with its path from the root, as in \"weft/base/error.h\""
    if target not in TOP[top].split():
        return f"'{top}' may not include '{target}' ({header})"
    if top == "weft" and target == "weft" and folder_of(header) not in visible(folder):
        return f"'{folder}' may not include '{folder_of(header)}' ({header})"
    return None


def check(root):
    faults = []
    listed, long_files = {}, root / "tools/long_files.txt"
    for number, line in enumerate(long_files.read_text().splitlines() if long_files.exists() else [], 1):
        name, _, reason = line.partition(" ")
        if name and not name.startswith("#"):
            listed[name] = number
            if not reason.strip():
                faults.append(f"tools/long_files.txt:{number}: '{name}' has no reason")
    needed = set()
    for file in sorted(p for top in (*TOP, "tools") for p in (root / top).rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in (".h", ".cc", ".cu", ".cuh", ".py"):
            continue
        for word in sorted(BANNED_WORDS & set(re.split(r"[_./-]", path))):
            faults.append(f"{path}:1: a name with '{word}' says nothing: name the file by what it holds")
        lines = file.read_text(errors="replace").splitlines()
        if len(lines) > LONGEST:
            needed.add(path)
            if path not in listed:
                faults.append(f"{path}:{LONGEST + 1}: {len(lines)} lines, over {LONGEST}: split it, or list it with a "
                              "reason in tools/long_files.txt")
        if file.suffix == ".py":
            continue
        if path.startswith("weft/") and folder_of(path).split("/")[0] not in SEES:
            faults.append(f"{path}:1: '{folder_of(path)}' is no folder of the house: give it a place in "
                          "tools/check_layers.py")
            continue
        for number, line in enumerate(lines, 1):
            found = INCLUDE.match(line)
            fault = found and include_fault(path, *found.groups())
            if fault:
                faults.append(f"{path}:{number}: {fault}")
    faults += [f"tools/long_files.txt:{listed[name]}: '{name}' is not a file over {LONGEST} lines: drop the entry"
               for name in sorted(listed.keys() - needed)]
    return faults


if __name__ == "__main__":
    found_faults = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print("\n".join(found_faults) if found_faults else "layers: in order")
    sys.exit(1 if found_faults else 0)
