"""Plants one fault at a time in a small tree: tools/check_layers.py must report its file, line and rule, and nothing else."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest.mock import patch

TOOL = Path(__file__).resolve().parents[2] / "tools/check_layers.py"
sys.dont_write_bytecode = True
SPEC = importlib.util.spec_from_file_location("check_layers", TOOL)
check_layers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_layers)

# A tree with every allowed kind of include, whose libraries link what the table allows.
GOOD = {
    **{f"weft/{folder}/CMakeLists.txt": f"weft_library({folder} DEPENDS {libraries})\n" for folder, libraries in {
        "base": "fmt::fmt", "pattern": "weft_base", "grid": "weft_base", "device": "weft_base", "comm": "weft_device",
        "model": "weft_base weft_pattern weft_grid weft_device", "plan": "weft_model", "optim": "weft_model",
        "checkpoint": "weft_model", "data": "weft_base weft_grid", "execute": "weft_plan weft_optim weft_comm",
        "train": "weft_execute weft_checkpoint weft_data"}.items()},
    "weft/device/cpu/CMakeLists.txt": "add_library(weft_device_cpu x.cc)\n"
                                      "target_link_libraries(weft_device_cpu PUBLIC weft_device PRIVATE ${DNNL})\n",
    "weft/comm/nccl/CMakeLists.txt": "# weft_library(comm_nccl DEPENDS weft_plan)\n"
                                     "weft_library(comm_nccl SOURCES x.cc DEPENDS weft_comm weft_device_cuda)\n",
    "weft/base/error.h": "#pragma once\n#include <string>\n",
    "weft/pattern/pattern.cc": '#include "weft/pattern/pattern.h"\n#include "weft/base/error.h"\n',
    "weft/device/device.h": '#include "weft/base/error.h"\n',
    "weft/device/cpu/kernels/gemm.cc": '#include "weft/device/cpu/gemm.h"\n#include "weft/device/device.h"\n',
    "weft/device/cuda/stream.cu": '#include <cuda_runtime.h>\n#include <cublas_v2.h>\n#include <cudnn.h>\n',
    "weft/comm/communicator.h": '#include "weft/device/device.h"\n',
    "weft/comm/mpi/mpi.cc": '#include <mpi.h>\n#include "weft/comm/communicator.h"\n',
    "weft/comm/nccl/nccl.cc": '#include <nccl.h>\n#include <cuda_runtime.h>\n#include "weft/device/cuda/stream.h"\n',
    "weft/model/layers/mlp.cc": '#include "weft/device/device.h"\n#include "weft/grid/grid.h"\n',
    "weft/plan/passes/weave.cc": '#include "weft/plan/plan.h"\n#include "weft/model/model.h"\n',
    "weft/execute/serial.cc": '#include "weft/comm/communicator.h"\n#include "weft/optim/updates.h"\n',
    "weft/train/loop.cc": '#include "weft/execute/serial.h"\n#include "weft/data/tokens.h"\n',
    "apps/weft/main.cc": '#include "apps/weft/flags.h"\n#include "weft/device/cuda/device.h"\n',
    "tests/device/cpu_test.cc": '#include <cuda_runtime.h>\n#include "weft/device/cpu/gemm.h"\n',
    "bench/gemm.cc": '#include <cublas_v2.h>\n#include "weft/comm/mpi/mpi.h"\n',
    "tools/long_files.txt": "# path, then the reason\nweft/model/table.cc one table, read as a whole\n",
    "weft/model/table.cc": "// row\n" * 501,
}


def faults(changes, check=check_layers.check):
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**GOOD, **changes}.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check(Path(root))


def run_program(root):
    done = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def place_in_table(folder):
    lines = TOOL.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("SEES = {"))
    return f"tools/check_layers.py:{next(n for n in range(start, len(lines)) if f'{chr(34)}{folder}{chr(34)}:' in lines[n]) + 1}"


class CheckLayers(unittest.TestCase):
    def expect(self, changes, fault):
        self.assertEqual(faults(changes), [fault])

    def expect_include(self, file, header, fault):
        self.expect({file: f"#pragma once\n#include {header}\n"}, f"{file}:2: {fault}")

    def test_accepts_the_good_tree(self):
        self.assertEqual(faults({}), [])

    def test_exit_code_and_output(self):
        self.assertEqual(faults({}, run_program), (0, "layers: in order\n", ""))
        self.assertEqual(faults({"weft/base/new.h": '#include "weft/plan/plan.h"\n'}, run_program),
                         (1, "weft/base/new.h:1: 'base' may not include 'plan' (weft/plan/plan.h)\n", ""))

    def test_direction(self):
        for folder, other in [("base", "pattern"), ("pattern", "grid"), ("grid", "model"), ("device", "model"),
                              ("device", "comm"), ("comm", "grid"), ("model", "plan"), ("model", "comm"),
                              ("plan", "execute"), ("plan", "device"), ("optim", "plan"), ("checkpoint", "optim"),
                              ("data", "model"), ("execute", "train"), ("execute", "checkpoint")]:
            with self.subTest(folder=folder, other=other):
                self.expect_include(f"weft/{folder}/new.h", f'"weft/{other}/file.h"',
                                    f"'{folder}' may not include '{other}' (weft/{other}/file.h)")

    def test_subfolders_obey_their_folder(self):
        for subfolder in ["check", "draw", "simulate", "passes", "orders"]:
            with self.subTest(subfolder=subfolder):
                self.expect_include(f"weft/plan/{subfolder}/new.h", '"weft/execute/file.h"',
                                    "'plan' may not include 'execute' (weft/execute/file.h)")
                self.expect_include("weft/model/new.h", f'"weft/plan/{subfolder}/file.h"',
                                    f"'model' may not include 'plan' (weft/plan/{subfolder}/file.h)")
                self.assertEqual(faults({f"weft/plan/{subfolder}/new.h": '#include "weft/plan/plan.h"\n',
                                         "weft/train/new.h": f'#include "weft/plan/{subfolder}/new.h"\n'}), [])

    def test_angle_brackets(self):
        self.expect_include("weft/plan/new.h", "<weft/execute/file.h>",
                            "'plan' may not include 'execute' (weft/execute/file.h)")
        self.expect_include("weft/model/new.h", "<weft/device/cpu/gemm.h>",
                            "'model' may not include 'device/cpu' (weft/device/cpu/gemm.h)")
        self.expect_include("weft/plan/new.h", "<apps/weft/flags.h>", "'weft' may not include 'apps' (apps/weft/flags.h)")
        self.assertEqual(faults({"weft/plan/new.h": "#include <weft/model/model.h>\n#include <sys/stat.h>\n"}), [])

    def test_every_suffix_of_c_and_cuda(self):
        for suffix in ["h", "hh", "hpp", "hxx", "inl", "c", "cc", "cpp", "cxx", "cu", "cuh"]:
            with self.subTest(suffix=suffix):
                self.expect_include(f"weft/base/new.{suffix}", '"weft/plan/plan.h"',
                                    "'base' may not include 'plan' (weft/plan/plan.h)")
        self.expect({"weft/plan/new.hpp": "\n" * 501}, "weft/plan/new.hpp:501: 501 lines, over 500: split it, or list it "
                    "with a reason in tools/long_files.txt")

    def test_links_that_the_table_does_not_allow(self):
        rule = "which tools/check_layers.py does not let it include"
        self.expect({"weft/comm/CMakeLists.txt": "# the interface\nweft_library(comm DEPENDS weft_device\n  weft_grid)\n"},
                    f"weft/comm/CMakeLists.txt:3: 'comm' links 'grid', {rule}")
        self.expect({"weft/plan/CMakeLists.txt": "weft_library(plan DEPENDS weft_model)\n"
                                                 "target_link_libraries(weft_plan PUBLIC weft_device)\n"},
                    f"weft/plan/CMakeLists.txt:2: 'plan' links 'device', {rule}")
        self.expect({"weft/optim/CMakeLists.txt": "weft_library(optim DEPENDS weft_model weft_device_cpu)\n"},
                    f"weft/optim/CMakeLists.txt:1: 'optim' links 'device/cpu', {rule}")
        self.expect({"weft/device/cpu/CMakeLists.txt": "target_link_libraries(weft_device_cpu PUBLIC weft_device weft_comm)\n"},
                    f"weft/device/cpu/CMakeLists.txt:1: 'device/cpu' links 'comm', {rule}")

    def test_links_that_are_missing(self):
        self.expect({"weft/data/CMakeLists.txt": "\nweft_library(data DEPENDS weft_base)\n"},
                    "weft/data/CMakeLists.txt:2: 'data' may include 'grid' but does not link it: add weft_grid, or drop "
                    "'grid' from tools/check_layers.py")
        self.expect({"weft/pattern/CMakeLists.txt": "weft_library(pattern)\n"},
                    "weft/pattern/CMakeLists.txt:1: 'pattern' may include 'base' but does not link it: add weft_base, or "
                    "drop 'base' from tools/check_layers.py")

    def test_libraries_and_folders_of_the_table(self):
        self.expect({"weft/extra/CMakeLists.txt": "weft_library(extra DEPENDS weft_base)\n"},
                    "weft/extra/CMakeLists.txt:1: 'extra' is not in the table of tools/check_layers.py")
        self.expect({"weft/train/CMakeLists.txt": "# nothing yet\n"},
                    f"{place_in_table('train')}: no CMakeLists.txt in weft/train calls weft_library(train ...)")

    def test_cycles_of_the_table(self):
        for changes, cycle in [({"grid": "data"}, "grid -> data -> grid"), ({"base": "pattern"}, "base -> pattern -> base"),
                               ({"pattern": "plan"}, "pattern -> plan -> model -> pattern")]:
            with self.subTest(cycle=cycle), patch.dict(check_layers.SEES, changes):
                found = [fault for fault in faults({}) if "cycle" in fault]
                self.assertIn(f"{place_in_table(cycle.split()[0])}: the table has a cycle: {cycle}", found)
        with patch.dict(check_layers.SEES, {"data": "grid stories"}):
            self.assertIn(f"{place_in_table('data')}: 'data' may include 'stories', which is not in the table", faults({}))

    def test_cycles_of_sibling_folders(self):
        down = {"weft/plan/check/a.cc": '#include "weft/plan/simulate/engine.h"\n#include "weft/plan/plan.h"\n',
                "weft/plan/simulate/a.cc": '#include "weft/plan/draw/timeline.h"\n#include "weft/plan/plan.h"\n',
                "weft/plan/build.cc": '#include "weft/plan/check/check.h"\n',
                "weft/device/cpu/gemm.cc": '#include "weft/device/cpu/kernels/gemm.h"\n'}
        self.assertEqual(faults(down), [])
        self.expect({**down, "weft/plan/simulate/b.h": '#pragma once\n#include "weft/plan/check/classes.h"\n'},
                    "weft/plan/simulate/b.h:2: folders include each other: weft/plan/check -> weft/plan/simulate -> "
                    "weft/plan/check")
        self.expect({**down, "weft/plan/draw/deep/b.h": '#include "weft/plan/check/classes.h"\n'},
                    "weft/plan/draw/deep/b.h:1: folders include each other: weft/plan/check -> weft/plan/simulate -> "
                    "weft/plan/draw -> weft/plan/check")

    def test_leaves_are_seen_by_nobody(self):
        for file, leaf in [("weft/model/new.h", "device/cpu"), ("weft/train/new.h", "comm/local"),
                           ("weft/device/new.h", "device/null"), ("weft/comm/new.h", "comm/mpi"),
                           ("weft/device/cpu/new.h", "device/cuda"), ("weft/comm/mpi/new.h", "device/cuda")]:
            folder = file.removeprefix("weft/").removesuffix("/new.h")
            with self.subTest(file=file, leaf=leaf):
                self.expect_include(file, f'"weft/{leaf}/file.h"',
                                    f"'{folder}' may not include '{leaf}' (weft/{leaf}/file.h)")

    def test_leaves_see_only_interfaces(self):
        self.expect_include("weft/device/cpu/new.h", '"weft/comm/communicator.h"',
                            "'device/cpu' may not include 'comm' (weft/comm/communicator.h)")
        self.expect_include("weft/comm/local/new.h", '"weft/grid/grid.h"',
                            "'comm/local' may not include 'grid' (weft/grid/grid.h)")

    def test_vendor_headers(self):
        for file, header, leaves in [("weft/model/new.h", "cuda_runtime.h", "device/cuda and comm/nccl"),
                                     ("weft/device/new.h", "cublasLt.h", "device/cuda and comm/nccl"),
                                     ("weft/device/cpu/new.h", "cudnn.h", "device/cuda and comm/nccl"),
                                     ("weft/comm/new.h", "mpi.h", "comm/mpi"), ("weft/comm/mpi/new.h", "nccl.h", "comm/nccl"),
                                     ("weft/device/cuda/new.h", "nccl.h", "comm/nccl"), ("apps/new.h", "mpi.h", "comm/mpi")]:
            folder = file.removeprefix("weft/").removesuffix("/new.h")
            with self.subTest(file=file, header=header):
                self.expect_include(file, f"<{header}>", f"'{folder}' may not include <{header}>: only {leaves} may")

    def test_outer_folders(self):
        self.expect_include("weft/train/new.h", '"apps/weft/flags.h"', "'weft' may not include 'apps' (apps/weft/flags.h)")
        self.expect_include("apps/weft/new.h", '"tests/close.h"', "'apps' may not include 'tests' (tests/close.h)")

    def test_paths_from_the_root(self):
        self.expect_include("weft/grid/new.h", '"grid.h"',
                            'write "grid.h" with its path from the root, as in "weft/base/error.h"')
        for header in ['"weft/base/../plan/plan.h"', "<../plan/plan.h>"]:
            self.expect_include("weft/grid/new.h", header,
                                f'write "{header[1:-1]}" with its path from the root, as in "weft/base/error.h"')

    def test_unusual_spacing_and_comments(self):
        self.expect({"weft/base/new.h": '// #include "weft/plan/plan.h"\n  #  include "weft/plan/plan.h"\n'},
                    "weft/base/new.h:2: 'base' may not include 'plan' (weft/plan/plan.h)")

    def test_unknown_folder(self):
        self.expect({"weft/extra/new.h": ""}, "weft/extra/new.h:1: 'extra' is not in the table of tools/check_layers.py")

    def test_names(self):
        for path, word in [("weft/base/utils.h", "utils"), ("weft/model/matmul_common.cc", "common"),
                           ("tests/plan/helpers.h", "helpers"), ("weft/model/misc/new.cc", "misc")]:
            with self.subTest(path=path):
                self.expect({path: ""}, f"{path}:1: the name '{word}' tells nothing: name the file after its contents")

    def test_long_files(self):
        self.assertEqual(faults({"weft/plan/new.cc": "\n" * 500}), [])
        self.expect({"weft/plan/new.cc": "\n" * 501},
                    "weft/plan/new.cc:501: 501 lines, over 500: split it, or list it with a reason in tools/long_files.txt")
        listing = GOOD["tools/long_files.txt"]
        self.expect({"tools/long_files.txt": listing + "weft/plan/new.cc\n", "weft/plan/new.cc": "\n" * 501},
                    "tools/long_files.txt:3: 'weft/plan/new.cc' has no reason")
        self.expect({"tools/long_files.txt": listing + "weft/plan/gone.cc was long once\n"},
                    "tools/long_files.txt:3: 'weft/plan/gone.cc' is not a file over 500 lines: drop the entry")


if __name__ == "__main__":
    unittest.main()
