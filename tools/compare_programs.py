#!/usr/bin/env python3
"""Trains the same configurations with two builds of weft and compares what they compute, bit for bit: the loss and the
gradient norm of every step (--metrics, which gives all digits), and the bytes of the weights that --save-hf writes.

usage: tools/compare_programs.py OLD_WEFT NEW_WEFT [REGEX]

Prints one JSON line for what is compared, one per configuration (those whose name matches REGEX), and a last one with
the number that differ; exits with 1 if any does. For changes that must be neutral, such as another layout of plans.
"""
import hashlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = 4
MODELS = ["qwen3_moe", "deepseek_v3", "nemotron_h_moe", "qwen3_next"]  # of tests/golden; all have 8 experts
LAYOUTS = [(4, 4), (8, 4), (8, 8)]  # ranks, expert ranks
WEAVE = ["--overlap-moe-expert-parallel-comm"]
ORDERS = {
    "plain": [],
    "woven": WEAVE,
    "woven, delayed": [*WEAVE, "--delay-wgrad-compute"],
    "late updates": ["--overlap-optimizer"],
    "woven, delayed, late updates": [*WEAVE, "--delay-wgrad-compute", "--overlap-optimizer"],
    "late updates without clipping": ["--overlap-optimizer", "--clip-grad", "0"],
}
TYPES = {"f32": [], "bf16": ["--bf16"], "bf16, gradients in bf16": ["--bf16", "--grad-reduce-in-bf16"]}


def train(program, model, layout, flags, folder):
    """What a run computed: {"steps": [[loss, gradient norm], ...], "weights": {file: SHA-256}}, or {"error": TEXT}."""
    ranks, expert_ranks = layout
    command = [program, "train", "--hf", ROOT / "tests/golden" / model, "--mock-data", "--seq-length", "16",
               "--micro-batch-size", "1", "--global-batch-size", str(2 * ranks), "--ranks", str(ranks),
               "--expert-model-parallel-size", str(expert_ranks), "--train-iters", str(STEPS), "--eval-iters", "0",
               "--lr", "1e-2", "--device", "cpu", "--threads", "1", "--metrics", folder / "metrics", "--save-hf",
               folder / "out", *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-300:]}
    lines = [json.loads(line) for line in (folder / "metrics").read_text().splitlines()]
    return {"steps": [[line["loss"], line.get("grad_norm")] for line in lines if "loss" in line],
            "weights": {file.name: hashlib.sha256(file.read_bytes()).hexdigest()
                        for file in sorted((folder / "out").glob("*.safetensors"))}}


def main(old, new, wanted):
    print(json.dumps({"compared": "losses, gradient norms, weights", "steps": STEPS, "machine": platform.processor() or
                      platform.machine(), "command": " ".join(["tools/compare_programs.py", *sys.argv[1:]])}), flush=True)
    compared = differ = 0
    for model, layout, (order, order_flags), (dtype, dtype_flags) in itertools.product(
            MODELS, LAYOUTS, ORDERS.items(), TYPES.items()):
        name = f"{model}, {layout[0]} ranks, ep {layout[1]}, {order}, {dtype}"
        if not re.search(wanted, name):
            continue
        results = []
        for program in (old, new):
            with tempfile.TemporaryDirectory() as folder:
                results.append(train(program, model, layout, [*order_flags, *dtype_flags], Path(folder)))
        was, now = results
        same = was == now and "error" not in was and len(was["steps"]) == STEPS and len(was["weights"]) > 0
        compared += 1
        differ += not same
        line = {"case": name, "equal": same}
        if same:
            line["loss"], line["grad_norm"] = was["steps"][-1]
            line["weights"] = "; ".join(digest[:16] for digest in was["weights"].values())
        else:
            line["old"], line["new"] = was, now
        print(json.dumps(line), flush=True)
    print(json.dumps({"configurations": compared, "differ": differ}))
    return differ > 0 or compared == 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    sys.exit(main(sys.argv[1], sys.argv[2], " ".join(sys.argv[3:])))
