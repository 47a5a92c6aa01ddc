"""Programs captured from a module and its inputs as text, which must be equal to the original."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw, example_sizes, sizes_to_try
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.program.captured import Program
from fuseconv.sources import Subject


def subject_of(
    module: torch.nn.Module, *texts: str, call: tuple[str, ...] = (), specs: tuple[TensorSpec, ...] | None = None
) -> Subject:
    contract = Contract(specs or parse_inputs(texts), ())
    examples = draw(contract, example_sizes(contract), seed=0)
    return Subject(module.eval().requires_grad_(False), examples, contract, call, "pickle", "", drawn=True)


def original(subject: Subject, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Runs the original on copies, and returns its tensors flat."""
    copies = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        if subject.call:
            output = subject.module(**dict(zip(subject.call, copies, strict=True)))
        else:
            output = subject.module(*copies)
    return [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def assert_same(subject: Subject, program: Program) -> None:
    """The program gives exactly what the original gives, at every size worth trying, and leaves its inputs alone."""
    module = program.exported.module()
    for case, sizes in sizes_to_try(program.contract, seed=5, largest=96).items():
        tensors = draw(program.contract, sizes, seed=7)
        before = [tensor.clone() for tensor in tensors]
        with torch.no_grad():
            outputs = module(*tensors)
        assert isinstance(outputs, tuple), case
        assert len(outputs) == len(program.contract.outputs)
        for output, expected in zip(outputs, original(subject, tensors), strict=True):
            torch.testing.assert_close(output, expected, rtol=0, atol=0, msg=partial("{}: {}".format, case))
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True)), case


X = "x=f32[batch:1..64,4]"
