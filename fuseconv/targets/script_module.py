"""Compiles TorchScript source to a module and verifies that the compiler selected the intended op overloads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fuseconv.errors import UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.targets.script_source import Script, print_script


def compile_program(program: Program) -> torch.jit.ScriptModule:
    """Prints a program as TorchScript source, compiles the source, and returns the module in eval mode.

    If the compiler selects a wrong overload for a call, the program is printed again with all arguments of this call by
    keyword.

    Raises:
        UnsupportedError: TorchScript cannot express a node, or selects a wrong overload even with keywords.
    """
    script = print_script(program)
    module = _compiled(script)
    if taken := _taken_for_others(module, script):
        return compile_script(print_script(program, frozenset(taken)))
    return module.eval()


def compile_script(script: Script) -> torch.jit.ScriptModule:
    """Compiles the source, verifies the overloads that the compiler selected, and returns the module in eval mode.

    Raises:
        UnsupportedError: the compiler rejects the source, or selects a wrong overload for a call.
    """
    module = _compiled(script)
    for name, found in _taken_for_others(module, script).items():
        raise UnsupportedError(
            f"TorchScript resolves a call of {script.overloads[name]} to {found}",
            where=f"node {name}",
            fix="leave the target torchscript out",
        )
    return module.eval()


def _compiled(script: Script) -> torch.jit.ScriptModule:
    # Each model gets its own class, because the compiler creates one type per class, and a type has only one forward.
    owner = type("Model", (torch.nn.Module,), {})()
    for name, tensor in script.tensors.items():
        owner.register_buffer(name, tensor.detach())
    with quiet():
        module: torch.jit.ScriptModule = torch.jit.script(owner)
        try:
            module.define(script.source)
        except RuntimeError as error:
            raise UnsupportedError(
                f"TorchScript failed to compile the generated code: {str(error).strip()}",
                where="the target torchscript",
            ) from error
    return module


def _taken_for_others(module: torch.jit.ScriptModule, script: Script) -> dict[str, str]:
    """Maps each variable that a wrong overload computes to the schema of that overload.

    The source names only an op; the compiler selects the overload from the types of the arguments.
    """
    # The compiler numbers the values of a variable: x.1, x.2.
    chosen = {
        output.debugName().split(".")[0]: node.schema() for node in module.graph.nodes() for output in node.outputs()
    }
    expected = {name: str(overload._schema) for name, overload in script.overloads.items()}
    # A variable that is missing from the module is unused, and the compiler removed it.
    return {name: chosen[name] for name in expected if chosen.get(name, expected[name]) != expected[name]}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses torch's deprecation warnings for TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.")  # a FutureWarning from torch 2.15 on
        yield
