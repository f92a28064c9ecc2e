#!/usr/bin/env python3
"""Checks which folder includes and links which, where vendor headers are included, and how files are named and sized.

usage: tools/check_layers.py [ROOT]     prints one "file:line: fault" per line; exits with 1 if there is any
"""
import re
import sys
from pathlib import Path

# Folder of weft/ -> the folders it may include, in addition to itself and base. device and comm mean their interfaces:
# the headers directly in weft/device/ and weft/comm/, and weft/device/operations/. Their other subfolders are leaves
# (LEAF_SEES), which only apps/ names. The table has no cycle, nor have the subfolders of one folder (sibling_faults),
# and CMake links the same folders (cmake_faults).
SEES = {
    "base": "", "pattern": "", "grid": "", "device": "",
    "comm": "device",
    "model": "pattern grid device",
    "plan": "pattern grid model",
    "optim": "grid model device",
    "checkpoint": "grid model device",
    "data": "grid",
    "execute": "grid plan model optim device comm",
    "train": "pattern grid device comm model plan optim checkpoint data execute",
}
LEAF_SEES = {"device": "device", "comm": "device comm"}
INTERFACE = ("weft", "device", "operations")  # not a leaf: the arguments of the operations, one header per family
LEAF_ALSO_SEES = {"comm/nccl": "device/cuda"}
VENDOR = [  # header, the leaves that may include it
    (re.compile(r"(cuda|cublas|cudnn|cub/|cutlass/|cute/|thrust/|nvtx|nvToolsExt|cooperative_groups)"),
     "device/cuda comm/nccl"),
    (re.compile(r"nccl"), "comm/nccl"),
    (re.compile(r"mpi(\.h|-ext\.h|cxx\.h)$"), "comm/mpi"),
    (re.compile(r"pcre2"), "data"),
]
TOP = {"weft": "weft", "apps": "weft apps", "tests": "weft apps tests bench", "bench": "weft apps tests bench"}
BANNED_WORDS = {"util", "utils", "helper", "helpers", "misc", "common"}
LONGEST = 500
CPP = {".h", ".hh", ".hpp", ".hxx", ".inl", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh"}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
LINK = re.compile(r"\b(weft_library|target_link_libraries)\s*\(([^)]*)\)")


def folder_of(path):
    """'weft/plan/check/edges.h' -> 'plan'; 'weft/device/cpu/kernels/x.h' -> 'device/cpu'; 'apps/...' -> 'apps'."""
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
    target = Path(header).parts[0]
    if quote == "<" and target not in (*TOP, ".", ".."):
        return None
    if target not in TOP or ".." in Path(header).parts:
        return f"write \"{header}\" with its path from the root, as in \"weft/base/error.h\""
    if target not in TOP[top].split():
        return f"'{top}' may not include '{target}' ({header})"
    if top == "weft" and target == "weft" and folder_of(header) not in visible(folder):
        return f"'{folder}' may not include '{folder_of(header)}' ({header})"
    return None


def table_line(folder):
    """Where SEES gives a folder its place, as file:line."""
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    number = next((number for number, line in lines if f'"{folder}": "' in line), 1)
    return f"tools/check_layers.py:{number}"


def table_faults():
    """Unknown folders and cycles in SEES. Each cycle is reported once, at the folder where the search found it."""
    faults, done = [], set()

    def visit(folder, path):
        if folder in path:
            faults.append(f"{table_line(folder)}: the table has a cycle: "
                          f"{' -> '.join((*path[path.index(folder):], folder))}")
        elif folder not in done:
            for other in sorted(visible(folder) - {folder}):
                if other in SEES:
                    visit(other, (*path, folder))
                else:
                    faults.append(f"{table_line(folder)}: '{folder}' may include '{other}', which is not in the table")
            done.add(folder)

    for folder in SEES:
        visit(folder, ())
    return faults


def sibling_edge(path, header):
    """The two sibling folders that an include connects: 'weft/plan/check/x.cc', 'weft/plan/draw/y.h' -> 'weft/plan/check',
    'weft/plan/draw'. None if a folder includes itself or a folder it is in, and between folders of weft/ (SEES)."""
    own, other = Path(path).parent.parts, Path(header).parent.parts
    shared = 0
    while shared < min(len(own), len(other)) and own[shared] == other[shared]:
        shared += 1
    if shared < 2 or shared in (len(own), len(other)):
        return None
    return "/".join(own[:shared + 1]), "/".join(other[:shared + 1])


def sibling_faults(edges):
    """Cycles between siblings. `edges`: folder -> {sibling it includes: file:line}. Each cycle is reported once, at an
    include of it."""
    faults, done = [], set()

    def visit(folder, path):
        for other in sorted(edges.get(folder, {})):
            if other in path:
                cycle = " -> ".join((*path[path.index(other):], other))
                faults.append(f"{edges[folder][other]}: folders include each other: {cycle}")
            elif other not in done:
                visit(other, (*path, other))
        done.add(folder)

    for folder in sorted(edges):
        if folder not in done:
            visit(folder, (folder,))
    return faults


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def folder_of_library(name):
    """'weft_model' -> 'model'; 'weft_device_cpu' -> 'device/cpu'; 'weft_train_session', a part of train's files -> 'train';
    None for a library that is not Weft's."""
    top, _, leaf = name.removeprefix("weft_").partition("_")
    if not name.startswith("weft_"):
        return None
    return f"{top}/{leaf}" if top in LEAF_SEES and leaf else top


def cmake_faults(root):
    """CMake may link only what the table allows, and must link all of it, directly or through another library."""
    faults, libraries, links = [], {}, {}
    for file in sorted((root / "weft").rglob("CMakeLists.txt")):
        path = file.relative_to(root).as_posix()
        folder = folder_of(path)
        if folder.split("/")[0] not in SEES:
            faults.append(f"{path}:1: '{folder}' is not in the table of tools/check_layers.py")
            continue
        text = re.sub(r"#.*", lambda comment: " " * len(comment[0]), file.read_text())
        for command in LINK.finditer(text):
            name, *words = re.finditer(r"\S+", command[2])
            if command[1] == "weft_library" and name[0] == folder:
                libraries[folder] = f"{path}:{line_at(text, command.start())}"
            for word in words:
                other = folder_of_library(word[0])
                if other:
                    links.setdefault(folder, set()).add(other)
                if other and other not in visible(folder):
                    faults.append(f"{path}:{line_at(text, command.start(2) + word.start())}: '{folder}' links '{other}', "
                                  "which tools/check_layers.py does not let it include")

    def reach(folder, seen):
        for other in links.get(folder, set()) - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    for folder in SEES:
        if folder not in libraries:
            faults.append(f"{table_line(folder)}: no CMakeLists.txt in weft/{folder} calls weft_library({folder} ...)")
            continue
        faults += [f"{libraries[folder]}: '{folder}' may include '{other}' but does not link it: add weft_{other}, or "
                   f"drop '{other}' from tools/check_layers.py"
                   for other in sorted(visible(folder) - {folder} - reach(folder, set()))]
    return faults


def check(root):
    faults = table_faults() + cmake_faults(root)
    listed, long_files = {}, root / "tools/long_files.txt"
    for number, line in enumerate(long_files.read_text().splitlines() if long_files.exists() else [], 1):
        name, _, reason = line.partition(" ")
        if name and not name.startswith("#"):
            listed[name] = number
            if not reason.strip():
                faults.append(f"tools/long_files.txt:{number}: '{name}' has no reason")
    needed, siblings = set(), {}
    for file in sorted(p for top in (*TOP, "tools") for p in (root / top).rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in (*CPP, ".py"):
            continue
        for word in sorted(BANNED_WORDS & set(re.split(r"[_./-]", path))):
            faults.append(f"{path}:1: the name '{word}' tells nothing: name the file after its contents")
        lines = file.read_text(errors="replace").splitlines()
        if len(lines) > LONGEST:
            needed.add(path)
            if path not in listed:
                faults.append(f"{path}:{LONGEST + 1}: {len(lines)} lines, over {LONGEST}: split it, or list it with a "
                              "reason in tools/long_files.txt")
        if file.suffix == ".py":
            continue
        if path.startswith("weft/") and folder_of(path).split("/")[0] not in SEES:
            faults.append(f"{path}:1: '{folder_of(path)}' is not in the table of tools/check_layers.py")
            continue
        for number, line in enumerate(lines, 1):
            found = INCLUDE.match(line)
            fault = found and include_fault(path, *found.groups())
            if fault:
                faults.append(f"{path}:{number}: {fault}")
            edge = found and path.startswith("weft/") and sibling_edge(path, found[2])
            if edge:
                siblings.setdefault(edge[0], {}).setdefault(edge[1], f"{path}:{number}")
    faults += sibling_faults(siblings)
    faults += [f"tools/long_files.txt:{listed[name]}: '{name}' is not a file over {LONGEST} lines: drop the entry"
               for name in sorted(listed.keys() - needed)]
    return faults


if __name__ == "__main__":
    found_faults = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    print("\n".join(found_faults) if found_faults else "layers: in order")
    sys.exit(1 if found_faults else 0)
