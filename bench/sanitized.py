"""Runs ops on their own samples and nothing else, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck --kernel-name kns=fuseconv python bench/sanitized.py layer_norm_act
    compute-sanitizer --tool racecheck python bench/sanitized.py linear_act --dtype bfloat16 --backend sm90

`kns=fuseconv` watches our kernels alone. Under racecheck that breaks cuBLAS's kernels of f16 and bf16, which then fail
with an illegal access (CUDA 13.0): there, watch all, or name a backend of ours.
"""

from __future__ import annotations

import argparse

import torch

from fuseconv import ops

DTYPES = ("float64", "float32", "float16", "bfloat16")


def main() -> None:
    """Runs and names every sample, and prints how many there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {op.name: op for op in ops.OPS}
    parser.add_argument("op", nargs="+", choices=sorted(known))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--backend", help="of linear_act; samples that it does not take are named")
    arguments = parser.parse_args()
    forced = {"backend": arguments.backend} if arguments.backend else {}
    ran = 0
    for name in arguments.op:
        for dtype in arguments.dtype:
            for sample in known[name].samples("cuda", getattr(torch, dtype)):
                try:
                    known[name](*sample.args, **sample.kwargs, **forced)
                except RuntimeError as error:
                    if not forced or "backend" not in str(error):
                        raise
                    print(f"{name} {dtype} {sample.name}: not taken by {arguments.backend}")
                    continue
                torch.cuda.synchronize()
                ran += 1
                print(f"{name} {dtype} {sample.name}", flush=True)
    print(f"{ran} samples ran")


if __name__ == "__main__":
    main()
