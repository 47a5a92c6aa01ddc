"""Machines for which an artifact was not built."""

from __future__ import annotations

CPP_TARGETS = ("aoti", "torchscript", "onnx-plugin", "onnx")


ELSEWHERE = [
    *(("machine", "sparc", target, "a sparc machine, but this is ") for target in CPP_TARGETS),
    *(("gpu", "9.0", target, "GPU architecture 9.0, but this is None") for target in CPP_TARGETS),
    *(("torch", "99.1.0", target, "torch 99.1.0, but this is 2.") for target in ("aoti", "torchscript")),
    *(("onnxruntime", "99.1.0", target, "ONNX Runtime 99.1.0, but this is 1.") for target in ("onnx", "onnx-plugin")),
    ("cpu", "AVX1024", "aoti", "a CPU with AVX1024, but this one has "),
]
