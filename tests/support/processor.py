"""Keeps oneDNN from the instructions of AVX512-FP16, on every processor.

With them, oneDNN in torch 2.13 does not finish generating its code for depthwise convolutions in f16 with windows of 15
elements or more, also in eager mode.
"""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
