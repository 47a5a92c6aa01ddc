"""Contains the source templates of the scripts that reproduce a numerical difference."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = '''"""{what}

Written by `fuseconv blame`. It needs {needs}. It prints the error, and exits with 1 while the difference exists.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import device, inf, nan
{imports}
tensors = load_file(Path(__file__).with_suffix(".safetensors"){device})
inputs = {{name[len("input.") :]: one for name, one in tensors.items() if name.startswith("input.")}}
original, fp64 = tensors["original"], tensors["fp64"]
'''

OPS = "\nimport fuseconv.ops\n"

PACK = """
from fuseconv.rulebook.packs import load_ops

load_ops([Path({path!r})], {{"code"}})
"""

CLASS = """
class {name}(torch.nn.Module):
{init}{forward}
"""

INIT = """\
    def __init__(self):
        super().__init__()
        for name in {weights}:
            self.register_buffer(name, tensors[f"{name}.{{name}}"])

"""

ORIGINAL = """
with torch.no_grad():
    (original,) = Original()({arguments})
"""

EAGER = """
with torch.no_grad():
    (actual,) = Fused()(FUSED_ARGUMENTS)
"""

TARGET = """
from fuseconv.blaming.rerun import through_target

(actual,) = through_target("{target}", {module}().eval(), [ARGUMENTS])
"""

PIECE = """
from fuseconv.blaming.rerun import run_piece

weights = [tensors[name] for name in {weights}]
(actual,) = run_piece("{target}", tensors["artifact"], weights, [inputs[name] for name in {inputs}])
"""

_ONNX = """
import tempfile

import onnxruntime

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = Path(folder, "model.onnx")
    torch.onnx.export(Original().eval(), (ARGUMENTS,), dynamo=True, verbose=False).save(path)
    provider = "CUDAExecutionProvider" if original.is_cuda else "CPUExecutionProvider"
    session = onnxruntime.InferenceSession(path, providers=[provider])
    given = [one.cpu().numpy() for one in (ARGUMENTS,)]
    names = [one.name for one in session.get_inputs()]
    actual = torch.from_numpy(session.run(None, dict(zip(names, given)))[0]).to(original.device)
"""

_EXPORT = """
with torch.no_grad():
    (actual,) = torch.export.export(Original().eval(), (ARGUMENTS,)).module()(ARGUMENTS)
"""

_TORCHSCRIPT = """
with torch.no_grad():
    (actual,) = torch.jit.trace(Original().eval(), (ARGUMENTS,))(ARGUMENTS)
"""

_AOTI = """
import tempfile

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = str(Path(folder, "model.pt2"))
    exported = torch.export.export(Original().eval(), (ARGUMENTS,))
    torch._inductor.aoti_compile_and_package(exported, package_path=path)
    (actual,) = torch._inductor.aoti_load_package(path)(ARGUMENTS)
"""

PLAIN: Mapping[str, str] = {
    "onnx": _ONNX,
    "onnx-plugin": _ONNX,
    "export": _EXPORT,
    "torchscript": _TORCHSCRIPT,
    "aoti": _AOTI,
}
"""The code that exports to a target and runs the result without fuseconv, by the name of the target."""

COMPARED = """
from fuseconv.numerics.tolerance import compare

row = compare(actual, original, fp64, may_overflow={special})
print(f"rmse against fp64: {{row.rmse_vs_fp64:.3e}}, that of the original: {{row.rmse_original_vs_fp64:.3e}}")
print(row.reason or "no difference")
sys.exit(0 if row.ok else 1)
"""

COMPARED_ALONE = """

def rms(values):
    return float(values.double()[compared].square().mean().sqrt()) if compared.any() else 0.0


compared = fp64.isfinite() & original.isfinite() & actual.isfinite()
error, own = rms(actual - fp64), rms(original - fp64)
limit = {factor} * own + {eps} * rms(fp64)
print(f"rmse against fp64: {{error:.3e}}, that of the original: {{own:.3e}}, the limit: {{limit:.3e}}")
infinite, expected = (int((~one.isfinite()).sum()) for one in (actual, original))
print(f"not finite: {{infinite}} elements, {{expected}} in the original")
same = actual.isfinite().equal(original.isfinite()) and (fp64.is_floating_point() or actual.equal(original))
sys.exit(0 if same and error <= limit else 1)
"""

OVERFLOW = """
wrong = ~original.isfinite() & fp64.isfinite()
print(f"{{int(wrong.sum())}} of {{wrong.numel()}} elements are not finite in {{original.dtype}}, but finite in float64")
sys.exit(1 if wrong.any() else 0)
"""
