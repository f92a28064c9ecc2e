"""Plants one fault at a time in a small tree; tools/check_layers.py must name its file, line and rule, and nothing else."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/check_layers.py"
sys.dont_write_bytecode = True
SPEC = importlib.util.spec_from_file_location("check_layers", TOOL)
check_layers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_layers)

# A house in which every allowed kind of include occurs.
GOOD = {
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
    "weft/execute/serial.cc": '#include "weft/comm/communicator.h"\n#include "weft/optim/adamw.h"\n',
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
        self.expect_include("weft/plan/orders/new.h", '"weft/execute/file.h"',
                            "'plan' may not include 'execute' (weft/execute/file.h)")

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

    def test_unusual_spacing_and_comments(self):
        self.expect({"weft/base/new.h": '// #include "weft/plan/plan.h"\n  #  include "weft/plan/plan.h"\n'},
                    "weft/base/new.h:2: 'base' may not include 'plan' (weft/plan/plan.h)")

    def test_unknown_folder(self):
        self.expect({"weft/extra/new.h": ""}, "weft/extra/new.h:1: 'extra' is no folder of the house: give it a place in "
                    "tools/check_layers.py")

    def test_names(self):
        for path, word in [("weft/base/utils.h", "utils"), ("weft/model/matmul_common.cc", "common"),
                           ("tests/plan/helpers.h", "helpers"), ("weft/model/misc/new.cc", "misc")]:
            with self.subTest(path=path):
                self.expect({path: ""}, f"{path}:1: a name with '{word}' says nothing: name the file by what it holds")

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
