#!/usr/bin/env python3
"""Causal attention of PyTorch on one GPU, forward and backward, in each of its modes, on the shapes of bench_gpu_kernels.

  python3 bench/peers/attention.py

Needs torch only. Prints one JSON line per mode and shape. 256 MiB are written before every round, so that the L2 cache is cold;
medians. FLOP: causal, 2 b h l l d forward, 2.5 times that backward.

Modes. PyTorch never asks cuDNN for its deterministic backward: under torch.use_deterministic_algorithms(True) it
declines cuDNN ("cuDNN SDPA is not deterministic", sdp_utils.cpp), and with warn_only=True it runs the same backward as
without. Its deterministic backward is that of flash attention. So
  cudnn         the cuDNN backend as it is: compare with our --attention-backward fastest;
  deterministic the fastest that PyTorch has under use_deterministic_algorithms(True): compare with our default.
"repeats" tells whether the gradients of five runs have the same bits.
"""
import json
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM, BATCH, ROUNDS = 32, 8, 128, 2, 15


def milliseconds(work, cold):
    for _ in range(3):
        work()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cold.zero_()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def case(mode, backend, length, cold):
    # Stored [batch, length, heads, dim], as projections make it.
    q, k, v, dout = (torch.randn(BATCH, length, heads, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
                     for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    inputs = [x.requires_grad_() for x in (q, k, v)]

    def forward():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)

    forward_ms = milliseconds(forward, cold)
    out = forward()

    def backward():
        return torch.autograd.grad(out, inputs, dout, retain_graph=True)

    backward_ms = milliseconds(backward, cold)
    first = backward()
    repeats = all(all(torch.equal(a, b) for a, b in zip(first, backward())) for _ in range(4))
    flop = 2.0 * BATCH * HEADS * DIM * length**2
    return dict(mode=mode, shape=f"b{BATCH} l{length} h{HEADS}/{KV_HEADS} d{DIM}", forward_ms=round(forward_ms, 4),
                backward_ms=round(backward_ms, 4), forward_tflop_s=round(flop / forward_ms * 1e-9, 1),
                backward_tflop_s=round(2.5 * flop / backward_ms * 1e-9, 1), repeats=repeats)


def main():
    torch.manual_seed(1)
    cold = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(json.dumps(dict(torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                          gpu=torch.cuda.get_device_name())), flush=True)
    for deterministic, mode, backend in ((False, "cudnn", SDPBackend.CUDNN_ATTENTION),
                                         (True, "cudnn, deterministic asked for", SDPBackend.CUDNN_ATTENTION),
                                         (False, "flash", SDPBackend.FLASH_ATTENTION),
                                         (True, "deterministic (flash)", SDPBackend.FLASH_ATTENTION)):
        for length in (4096, 8192):
            torch.use_deterministic_algorithms(deterministic)
            try:
                line = case(mode, backend, length, cold)
            except RuntimeError as error:
                line = dict(mode=mode, shape=f"l{length}", error=str(error)[:200])
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
