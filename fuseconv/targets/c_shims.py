"""Declares the ops of fuseconv as C functions, which AOTInductor packages call directly.

Without these declarations, a package calls an op through the proxy executor, which boxes the arguments and goes through
the dispatcher. This takes several microseconds of host time per call. See docs/adr/0009-c-shims.md.

The package finds the op library by name among the loaded libraries, and looks each op up once. It therefore uses the
copy of the library that registered the op with torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from fuseconv.ops import NAMESPACE, library

_LOOKUP = (
    "AOTITorchError (*fuseconv_{device}_c_shim(const char*))(const void* const*, AtenTensorHandle* const*)"  # CShim
)

_DEFINITION = """\
inline __attribute__((visibility("hidden"))) AOTITorchError aoti_torch_{device}_{op}({parameters}) {{
  static const auto shim = fuseconv_{device}_c_shim("{op}");
{lists}  const void* const arguments[] = {{{arguments}}};
  AtenTensorHandle* const results[] = {{{results}}};
  return shim != nullptr ? shim(arguments, results) : AOTI_TORCH_FAILURE;
}}"""

_TYPES = {
    "Tensor": "AtenTensorHandle",
    "Optional[Tensor]": "AtenTensorHandle*",
    "int": "int64_t",
    "float": "double",
    "bool": "int32_t",
    "str": "const char*",
}
"""The C types of arguments in AOTInductor, by schema type. A `List[int]` is passed as a pointer and a count."""


def inductor_configs(exported: torch.export.ExportedProgram, device: str) -> dict[str, Any]:
    """Returns the Inductor settings that make a package call fuseconv ops as C functions.

    Returns an empty dict for a program that calls no fuseconv op, because its package does not require the op library.
    The linker must search `library.FOLDER` for the libraries.

    Args:
        exported: the program to compile.
        device: `cpu` or `cuda`.
    """
    called = {
        node.target
        for module in exported.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == NAMESPACE
    }
    if not called:
        return {}
    paths = library.library_paths(device)
    devices = ("cpu", "cuda")[: len(paths)]  # a program for a GPU may compute something on the CPU
    return {
        "aot_inductor.custom_ops_to_c_shims": {
            op: [text for place in devices for text in declarations(op._schema, place)] for op in called
        },
        "aot_inductor.custom_op_libs": [f":{path.name}" for path in paths],
    }


def declarations(schema: torch.FunctionSchema, device: str) -> list[str]:
    """Returns the C++ code that calls one op from a package: the declaration of the lookup function, and the op's shim.

    Raises:
        KeyError: an argument is of a type that no fuseconv op uses.
    """
    op = schema.name.removeprefix(f"{NAMESPACE}::")
    parameters, lists, arguments = [], [], []
    for argument in schema.arguments:
        name = argument.name
        if str(argument.type) == "List[int]":
            parameters += [f"const int64_t* {name}_data", f"int64_t {name}_size"]
            lists.append(
                f"  const struct {{ const int64_t* data; int64_t size; }} {name}{{{name}_data, {name}_size}};\n"
            )
        else:
            parameters.append(f"{_TYPES[str(argument.type)]} {name}")
        arguments.append(f"&{name}")
    results = [f"result{place}" for place in range(len(schema.returns))]
    parameters += [f"AtenTensorHandle* {result}" for result in results]
    definition = _DEFINITION.format(
        device=device,
        op=op,
        parameters=", ".join(parameters),
        lists="".join(lists),
        arguments=", ".join(arguments),
        results=", ".join(results),
    )
    return [_LOOKUP.format(device=device), definition]
