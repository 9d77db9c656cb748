#!/usr/bin/env python3
# bench/peers/torch_peers.py
# Times the attention that ships with PyTorch on the dense cases of bench/gpu_kernels.cpp, for a look side by side:
# CUDA events, 3 calls to warm up, the median of 15. Prints one line a case: forward and backward.
"""usage: torch_peers.py [--backends flash,cudnn,math]"""

import argparse
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
DENSE = [  # batch, heads, length, head_dim
    (4, 16, 4096, 128),
    (1, 16, 16384, 128),
    (2, 16, 16384, 64),
    (1, 16, 4096, 256),
]


def median_ms(call, warm_up=3, runs=15):
    times = []
    for i in range(warm_up + runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= warm_up:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def tensors(batch, heads, length, head_dim):
    make = lambda: torch.randn(batch, heads, length, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return make(), make(), make()


def report(name, shape, pairs, attention, inputs):
    batch, heads, length, head_dim = shape
    flops = 4.0 * pairs * head_dim * heads * batch
    with torch.no_grad():
        forward = median_ms(lambda: attention(*inputs))
    out = attention(*inputs)
    gradient = torch.randn_like(out)
    backward = median_ms(lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True))
    print(f"{name:44s} {batch}x{heads}x{length} d{head_dim}  fwd {forward:9.3f} ms {flops / forward * 1e-9:6.1f} TF"
          f"  bwd {backward:9.3f} ms {2.5 * flops / backward * 1e-9:6.1f} TF", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="flash,cudnn")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for shape in DENSE:
        length = shape[2]
        inputs = tensors(*shape)
        for backend in arguments.backends.split(","):
            for is_causal in (False, True):
                def attention(q, k, v):
                    with sdpa_kernel(BACKENDS[backend]):
                        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
                pairs = length * (length + 1) / 2 if is_causal else float(length) * length
                name = f"torch {backend} {'causal' if is_causal else 'dense'}"
                try:
                    report(name, shape, pairs, attention, inputs)
                except RuntimeError as error:
                    print(f"{name} {shape}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
