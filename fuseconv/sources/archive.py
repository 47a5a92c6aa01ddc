"""Reads torch.export archives (.pt2) without running code from them: every member is screened first.

`torch.export.load` can run code from an archive in six ways. It unpickles weights and objects. It unpickles example
inputs without restriction if the restricted load fails. It evaluates symbolic shapes with sympy, compiles guards, looks
up node targets as any function in `torch`, and loads compiled code. This module and `serialized` reject archives that
could use one of these ways, before torch reads them.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch._export.serde.schema import SCHEMA_VERSION
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.inputs import torch_dtype
from fuseconv.contract.options import Options
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import FuseconvError, RefusedError, UnsupportedError, UpstreamError
from fuseconv.program.loading import load_program
from fuseconv.program.quiet import quiet_torch
from fuseconv.sources.flat import drop_detach, flatten, is_plain
from fuseconv.sources.guards import narrowed
from fuseconv.sources.library_ops import define_library_ops
from fuseconv.sources.on_cpu import on_cpu
from fuseconv.sources.pickles import listed, unsafe_globals
from fuseconv.sources.screening import Member, member_root, read_member, screen_zip
from fuseconv.sources.serialized import screen_program, tree_types
from fuseconv.sources.subject import Loaded
from fuseconv.untrusted.files import open_plain
from fuseconv.untrusted.plain_pickle import load_plain_pickle

_TENSOR = re.compile(r"L(?:\[(?:'[^']*'|\d+)\])+")
"""Matches a guard's expression for a tensor: a parameter of forward and a path inside it, such as `L['pair'][0]`."""

LARGEST_DIM = 2**31 - 1
"""The maximum of a dim whose range in the archive has no upper bound."""


def load(path: Path, options: Options) -> Loaded:
    """Reads the exported program of an archive, and derives the inputs of the contract from the program.

    Raises:
        RefusedError: the archive is damaged or would run code.
        UnsupportedError: the program requires something that this machine lacks or that a contract cannot express.
    """
    screen_archive(path, checksums=False)  # `sniff` has verified the checksums
    with on_cpu(path) as archive:
        exported = load_exported(archive, path)
    drop_detach(exported)
    if options.dtype is not None:
        _convert(exported, torch_dtype(options.dtype))
    leaves = pytree.tree_leaves(exported.example_inputs or ())
    examples = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    if is_plain(exported):
        names = tuple(
            spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT
        )
    else:
        guards = _renamed_guards(exported, path)
        flat = flatten(exported, examples=examples or None)  # torch checks guards if there are examples
        exported, names = flat.exported, flat.inputs
        exported._guards_code = guards
        exported.module_call_graph[0].signature.out_spec = pytree.tree_structure(dict.fromkeys(flat.outputs))
    module = exported.module()
    contract = narrowed(module, Contract(_specs(exported, names), ()))
    return Loaded(module, contract.inputs, examples, (), names, original=exported.module(check_guards=False))


def _renamed_guards(exported: ExportedProgram, path: Path) -> list[str]:
    """Returns the size guards of a program, with each tensor in a container replaced by its name as a flat input.

    For example, `L['pair'][0]` becomes `L['pair_0']`.

    Args:
        exported: the program before its inputs are flattened.
        path: the path of the archive, for the error.

    Raises:
        UnsupportedError: a guard constrains a tensor that is no input of the flat program.
    """
    users = [spec.arg for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    signature = exported.module_call_graph[0].signature
    assert signature is not None
    positional = signature.forward_arg_names or ()
    names = {}
    tree = pytree.tree_unflatten(users, exported.call_spec.in_spec)
    leaves: Any = pytree.tree_flatten_with_path(tree)[0]
    for (kind, at, *rest), argument in leaves:
        outer = at.key if kind.idx == 1 else positional[at.idx] if at.idx < len(positional) else ""
        names[f"L[{outer!r}]{pytree.keystr(tuple(rest))}"] = f"L[{argument.name!r}]"
    guards = []
    for guard in exported._guards_code:
        renamed = _TENSOR.sub(lambda found: names.get(found[0], ""), guard)
        if len(_TENSOR.findall(renamed)) != len(_TENSOR.findall(guard)):
            raise UnsupportedError(
                f"the archive constrains the sizes of tensors in containers: {guard}",
                where=str(path),
                fix="export the model so that its forward takes the tensors one by one",
            )
        guards.append(renamed)
    return guards


def load_exported(path: Path, named: Path) -> ExportedProgram:
    """Loads a screened archive with `load_program`, and returns its program.

    Args:
        path: the path of the screened archive, which may be a temporary copy.
        named: the path of the user's archive, for the error.

    Raises:
        UpstreamError: torch cannot read the archive.
    """
    define_library_ops()
    try:
        with open_plain(path) as file, quiet_torch(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The given buffer is not writable"
            )  # a warning of torch itself, up to 2.12
            return load_program(file)
    except FuseconvError:
        raise
    except Exception as error:
        raise UpstreamError(
            f"torch {torch.__version__} cannot read the archive: {error}",
            where=str(named),
            fix="save it again with torch.export.save of this torch version, or first register the ops that it uses",
        ) from error


def screen_archive(path: Path, *, checksums: bool = True) -> None:
    """Checks that no part of an archive would run code when torch reads it.

    Args:
        path: the path of the archive.
        checksums: whether to verify the checksum of every member.

    Raises:
        RefusedError: a member is damaged or would run code. The error names the member and the reason.
        UnsupportedError: the archive contains compiled code, no program, or several programs.
    """
    members = screen_zip(path, checksums=checksums)
    root = member_root(members, path)
    programs = []
    for member in members:
        name = member.name.removeprefix(root)
        if name.startswith("data/aotinductor/"):
            raise RefusedError(
                "the archive contains compiled code",
                where=f"{path}: {member.name}",
                fix="convert the exported program from which the code was compiled",
            )
        if name.startswith("models/"):
            programs.append(member)
        elif name.startswith("data/sample_inputs/"):
            _screen_pickle(path, member)
        elif name.startswith(("data/constants/custom_obj", "data/constants/opaque_obj")):
            raise _refused(path, member, "is a pickled object")
        elif name.startswith(("data/weights/", "data/constants/")) and name.endswith(".pt"):
            _screen_pickle(path, member)
        elif name.startswith(("data/weights/", "data/constants/")) and name.endswith(".json"):
            _screen_payloads(path, member)
    if len(programs) != 1 or not programs[0].name.endswith("models/model.json"):
        raise UnsupportedError(
            f"the archive contains {len(programs)} programs, but must contain exactly one, with the name `model`",
            where=str(path),
            fix="save a single program with torch.export.save",
        )
    program = read_member(path, programs[0])
    screen_program(program, f"{path}: {programs[0].name}")
    _check_version(program, path)
    _import_tree_types(tree_types(program), path)


def _check_version(program: bytes, path: Path) -> None:
    """Checks that this version of torch supports the schema version of a serialized program.

    Without this check, torch reports only an internal error.

    Args:
        program: the JSON text of the program.
        path: the path of the archive, for the error.

    Raises:
        RefusedError: the program has no schema version.
        UnsupportedError: the schema version is not supported.
    """
    version = json.loads(program)
    version = version.get("schema_version") if isinstance(version, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if not isinstance(major, int):
        raise RefusedError(
            "the archive's program has no schema_version", where=str(path), fix="save it again with torch.export.save"
        )
    if major != SCHEMA_VERSION[0]:
        raise UnsupportedError(
            f"the archive has schema version {major}, but torch {torch.__version__} reads version {SCHEMA_VERSION[0]}",
            where=str(path),
            fix="export the model with this version of torch, or convert it with the one that exported it",
        )


def _import_tree_types(names: frozenset[str], path: Path) -> None:
    """Imports the transformers modules that define a program's container classes, so that torch can deserialize them.

    Args:
        names: the qualified names of the classes.
        path: the path of the archive, for the error.

    Raises:
        UnsupportedError: a module cannot be imported, for example because transformers is not installed.
    """
    for name in sorted(names):
        try:
            importlib.import_module(name.rpartition(".")[0])
        except ImportError as error:
            raise UnsupportedError(
                f"the program takes or returns a {name}, whose class cannot be imported: {error}",
                where=str(path),
                fix="pip install 'fuseconv[huggingface]', or export the model so that it returns plain tensors",
            ) from error


def _screen_pickle(path: Path, member: Member) -> None:
    """Checks that a pickled file in the archive contains only plain tensors.

    First checks the globals that its pickle references, then loads the file with a loader that accepts only tensors.

    Raises:
        RefusedError: the file contains something other than plain tensors.
    """
    data = read_member(path, member)
    where = f"{path}: {member.name}"
    if not data:
        return
    names = _nested_globals(data, where)
    if names:
        raise _refused(path, member, f"is a pickle that names {listed(names)}")
    try:
        load_plain_pickle(io.BytesIO(data))
    except pickle.UnpicklingError as error:
        raise _refused(path, member, "is a pickle with other objects than plain tensors") from error


def _nested_globals(data: bytes, where: str) -> tuple[str, ...]:
    """Returns the unsafe globals of the pickle in a torch.save file that is a member of an archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as nested:
            pickles = [name for name in nested.namelist() if name.endswith(".pkl")]
            if len(pickles) != 1 or nested.getinfo(pickles[0]).file_size > len(data):
                raise RefusedError("the archive's member is not a file of tensors", where=where)
            return unsafe_globals(nested.read(pickles[0]), where)
    except zipfile.BadZipFile as error:
        raise RefusedError("the archive's member is not a file of tensors", where=where) from error


def _screen_payloads(path: Path, member: Member) -> None:
    """Checks that a table of weights in the archive refers only to files in its own folder that are not pickles.

    Raises:
        RefusedError: the table is damaged, marks a weight as pickled, or refers to any other file.
    """
    try:
        config = json.loads(read_member(path, member))["config"]
        payloads = [(payload["path_name"], payload["use_pickle"]) for payload in config.values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(path, member, "is not a table of weights") from error
    for name, pickled in payloads:
        if pickled is not False:
            raise _refused(path, member, f"says that {name} is pickled")
        if not isinstance(name, str) or not name.startswith(("weight_", "tensor_")) or "/" in name:
            raise _refused(path, member, f"names the file {str(name)[:80]!r}")


def _refused(path: Path, member: Member, what: str) -> RefusedError:
    return RefusedError(
        f"the archive contains more than plain data: a member {what}",
        where=f"{path}: {member.name}",
        fix="save it again with torch.export.save, with plain tensors as weights and example inputs",
    )


def _convert(exported: ExportedProgram, dtype: torch.dtype) -> None:
    """Casts floating-point weights and constants to a dtype, and replaces floating-point dtype arguments in all graphs.

    The graphs of regions, such as one with autocast off, are graphs of submodules. Modifies the program in place.
    """
    change = dict.fromkeys((torch.float64, torch.float32, torch.float16, torch.bfloat16), dtype)
    graphs = [module for module in exported.graph_module.modules() if isinstance(module, GraphModule)]
    for node in [node for module in graphs for node in module.graph.nodes]:
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            node.graph.erase_node(node)
        else:
            node.args = tuple(change.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in node.args)
            node.kwargs = {
                key: change.get(arg, arg) if isinstance(arg, torch.dtype) else arg for key, arg in node.kwargs.items()
            }
    for tensors in (exported.state_dict, exported.constants):
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
                tensors[name] = torch.nn.Parameter(tensor.to(dtype), requires_grad=False)
            elif isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensors[name] = tensor.to(dtype)
    for module in graphs:
        module.recompile()


def _specs(exported: ExportedProgram, names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Returns one spec per input, derived from the placeholders and the range constraints of a program.

    The symbols become dims with the names dim0, dim1 and so on, in order of appearance.

    Args:
        exported: the program.
        names: the names of the inputs, which are the names of their placeholders.

    Raises:
        UnsupportedError: a size is not a multiple of a symbol, or two sizes are different multiples of the same symbol.
    """
    dims: dict[Any, Dim] = {}
    placeholders = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}

    def size_of(name: str, size: int | torch.SymInt) -> int | Dim:
        if isinstance(size, int):
            return size
        step, symbol = size.node.expr.as_coeff_Mul()
        if symbol.is_Symbol and symbol not in dims:
            values = exported.range_constraints[symbol]
            upper = int(values.upper) if values.upper.is_Integer else LARGEST_DIM // int(step)
            dims[symbol] = Dim(f"dim{len(dims)}", int(step) * max(1, int(values.lower)), int(step) * upper, int(step))
        if not symbol.is_Symbol or dims[symbol].step != step:
            raise UnsupportedError(
                f"input {name} has the size {size.node.expr}, which is computed from other dims",
                where=f"input {name}",
                fix="export the model with independent dims, multiples of dims, or static sizes",
            )
        return dims[symbol]

    specs = []
    for name in names:
        value = placeholders[name].meta["val"]
        shape = tuple(size_of(name, size) for size in value.shape)
        specs.append(TensorSpec(name, SHORT_DTYPES[str(value.dtype)], shape))
    return tuple(specs)
