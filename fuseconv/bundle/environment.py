"""The machine on which an artifact was built, and the architecture for which it was compiled.

Nothing here imports torch.
"""

from __future__ import annotations

from fuseconv.bundle.sealed_text import Strict


class Environment(Strict):
    """The machine on which the bundle was built, and the versions of the software used.

    Attributes:
        python: the version of Python.
        platform: the operating system.
        machine: the architecture of the CPU.
        cpu: the instruction set of the CPU, as torch names it.
        torch: the version of torch.
        onnx: the version of onnx.
        onnxruntime: the version of ONNX Runtime. None if it is not installed.
        cuda: the version of CUDA. None for the CPU.
        gpu: the compute capability of the GPU, such as `9.0`. None for the CPU.
    """

    python: str
    platform: str
    machine: str
    cpu: str
    torch: str
    onnx: str
    onnxruntime: str | None
    cuda: str | None
    gpu: str | None

    @property
    def architecture(self) -> str:
        """The architecture for which machine code of this machine is compiled.

        For a GPU, its compute capability: `sm_90`. For a CPU, its architecture and vector instructions:
        `x86_64-avx512`, `x86_64-avx2`.
        """
        if self.gpu is not None:
            return f"sm_{self.gpu.replace('.', '')}"
        return f"{self.machine}-{self.cpu.lower().replace(' ', '')}"
