"""A table of planted faults: each is blamed on the right rule, op, weight, target and layer, with a script."""

from __future__ import annotations

import io
import json
import re
import runpy
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file
from support.planted import TARGETS, Overflowing, Stand, save
from torch import Tensor

from fuseconv import ops
from fuseconv.blaming.comparison import Bundle, Comparison
from fuseconv.blaming.repro import quiet
from fuseconv.blaming.search import Search
from fuseconv.bundle.manifest import read_manifest, seal
from fuseconv.errors import ParityError
from fuseconv.matching.steps import Plan
from fuseconv.parity.reference import REFERENCE, read_reference
from fuseconv.pipeline.blame import blame
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.read import silent
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import copied, with_graph
from fuseconv.targets import exported, onnx_export
from fuseconv.weights.tensor_file import placed


@pytest.fixture
def stand(converted: Path, tmp_path: Path) -> Iterator[Stand]:
    bundle = Path(shutil.copytree(converted / "model.fuseconv", tmp_path / "model.fuseconv"))
    with pytest.MonkeyPatch.context() as patch:
        made = Stand(converted / "model.pt2", bundle, patch, tmp_path)
        yield made
        for undo in made.undo:
            undo()


Blamed = tuple[Path, dict[str, Any]]
"""What is given to `blame`."""


def epsilon_in_onnx(stand: Stand) -> Blamed:
    def change(data: bytes) -> bytes:
        model = onnx.load_model_from_string(data)
        node = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
        next(one for one in node.attribute if one.name == "epsilon").f = 0.01
        return model.SerializeToString()

    return stand.edit("model.onnx", change), {}


def weight_in_onnx(stand: Stand) -> Blamed:
    def change(data: bytes) -> bytes:
        model = onnx.load_model_from_string(data)
        bias = next(one for one in model.graph.initializer if one.name == "layers.1.down.bias")
        bias.raw_data = struct.pack("f", 3.0) + bias.raw_data[4:]
        return model.SerializeToString()

    return stand.edit("model.onnx", change), {}


def weight_in_store(stand: Stand) -> Blamed:
    at = placed(stand.bundle / "weights.safetensors")["layers.1.up.weight"].offset
    change: Callable[[bytes], bytes] = lambda data: data[: at + 8] + struct.pack("f", 3.0) + data[at + 12 :]  # noqa: E731
    return stand.edit("weights.safetensors", change), {"against": stand.model}


def node_in_archive(stand: Stand) -> Blamed:
    path = stand.bundle / "export" / "model.pt2"
    program = torch.export.load(path)
    for node in program.graph.nodes:
        if node.target is torch.ops.fuseconv.linear_act.default:
            node.args = (*node.args[:4], "relu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found in the group")  # the weights are in the store
        torch.export.save(program, path)
    return stand.sealed(), {}


def number_in_script(stand: Stand) -> Blamed:
    def change(data: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                text = old.read(name)
                new.writestr(name, text.replace(b"1.0000000000000001e-05, False", b"0.05, False"))
        return file.getvalue()

    return stand.edit("torchscript/model.pt", change), {}


def wrong_rule(stand: Stand) -> Blamed:
    plan = stand.plan(lambda steps: steps[3]["bindings"].update(act={"value": "relu"}))
    bundle = stand.folder / "wrong.fuseconv"
    convert(stand.model, plan=plan, target=["export"], allow_mismatch=True, output=bundle)
    return bundle, {}


def transposed_constant(stand: Stand) -> Blamed:
    lines = ["t = aten.t.default(w)", "y = fuseconv.linear_act.default(x, t, b, None, act)"]
    plan = stand.plan(lambda steps: steps[0].update(replace=lines))
    return stand.model, {"plan": plan, "target": ["export"]}


def kernel_without_tail(stand: Stand) -> Blamed:
    right = ops.add_layer_norm.reference

    def wrong(x: Tensor, r: Tensor, weight: Tensor, bias: Tensor, eps: float, keep: bool = True) -> tuple[Tensor, ...]:
        y, total = right(x, r, weight, bias, eps, keep)
        return torch.cat([y[..., :-3], torch.zeros_like(y[..., -3:])], -1), total.clone()

    library = torch.library.Library("fuseconv", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("add_layer_norm", wrong, "CPU", allow_override=True)
    stand.undo.append(library._destroy)
    return stand.model, {"plan": stand.bundle / "plan.json", "target": ["export"]}


def constant_by_converter(stand: Stand) -> Blamed:
    right = onnx_export.save

    def wrong(program: Any, path: Path, store: Any = None) -> None:
        right(program, path, store)
        model = onnx.load(path)
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "LayerNormalization" and attribute.name == "epsilon":
                    attribute.f = 0.01
        onnx.save(model, path)

    stand.patch.setattr(onnx_export, "save", wrong)
    return stand.model, {"plan": stand.bundle / "plan.json", "target": ["onnx"]}


def node_by_converter(stand: Stand) -> Blamed:
    right = exported.save

    def wrong(program: Any, path: Path, table: Any = None, others: Sequence[str] = ()) -> None:
        graph = copied(program.graph)
        for node in graph.nodes:
            if node.target is torch.ops.fuseconv.mlp.default:
                node.args = (*node.args[:7], "relu")
        right(with_graph(program, graph), path, table, others)

    stand.patch.setattr(exported, "save", wrong)
    return stand.model, {"plan": stand.bundle / "plan.json", "target": ["export"]}


def overflow(stand: Stand) -> Blamed:
    return save(Overflowing(), stand.folder / "half.pt2", torch.float16), {"target": ["export"]}


def exporter_of_torch(stand: Stand) -> Blamed:
    right: Any = torch.onnx.export

    def wrong(*given: Any, **named: Any) -> Any:
        made = right(*given, **named)
        for node in made.model.graph.all_nodes():
            if node.op_type == "Softmax":
                node.op_type = "LogSoftmax"
        return made

    stand.patch.setattr(torch.onnx, "export", wrong)
    return stand.model, {"plan": stand.bundle / "plan.json", "target": ["onnx"]}


@dataclass(frozen=True)
class Expected:
    """The right verdict, and whether its script still exits with 1 when the patches are undone: it is in a file."""

    cause: str
    targets: tuple[str, ...]
    layer: str
    node: str
    rule: str = ""
    detail: str = ""
    stays: bool = True


FAULTS: dict[Callable[[Stand], Blamed], Expected] = {
    epsilon_in_onnx: Expected(
        "artifact",
        ("onnx",),
        "layers.0.norm",
        "layer_norm",
        detail="has epsilon 0.00999.* is written",
    ),
    weight_in_onnx: Expected(
        "artifact", ("onnx",), "layers.1.down", "linear_4", "mlp", "Mlp has layers.1.down.bias with sha256"
    ),
    weight_in_store: Expected(
        "weights", TARGETS, "layers.1.down", "linear_4", "mlp", "1 of 1024 elements of layers.1.up.weight"
    ),
    node_in_archive: Expected("artifact", ("export",), "", "tanh", "linear-act", "has relu where tanh is written"),
    number_in_script: Expected(
        "artifact", ("torchscript",), "layers.0.norm", "layer_norm", detail="layer_norm has 0.05 where 1e-05 is written"
    ),
    wrong_rule: Expected("rule", (), "layers.1.down", "linear_4", "mlp"),
    transposed_constant: Expected("rule", (), "", "tanh", "linear-act"),
    kernel_without_tail: Expected("op", (), "layers.1.norm", "layer_norm_1", "add-layer-norm-sum", stays=False),
    constant_by_converter: Expected("target", ("onnx",), "layers.0.norm", "layer_norm", stays=False),
    node_by_converter: Expected("target", ("export",), "layers.0.down", "linear_2", "mlp", stays=False),
    overflow: Expected("model", (), "second", "linear_1"),
    exporter_of_torch: Expected("upstream", ("onnx",), "", "softmax", stays=False),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_and_reproduced(plant: Callable[[Stand], Blamed], stand: Stand) -> None:
    expected = FAULTS[plant]
    model, arguments = plant(stand)
    found = blame(model, output=stand.folder / "repros", **arguments)
    (verdict,) = found.faults
    border = verdict.border
    assert border is not None
    named = (verdict.cause, verdict.targets, border.layer, border.node, border.rule)
    assert named == (expected.cause, expected.targets, expected.layer, expected.node, expected.rule)
    assert re.search(expected.detail, verdict.detail)
    assert verdict.rows
    assert verdict.repro is not None  # it was run, and exited with 1
    if expected.cause == "artifact":  # its ops alone: they are given the values before
        assert ("weight.0" in load_file(verdict.repro.with_suffix(".safetensors"))) == (expected.node != "tanh")
    stand.patch.undo()
    while stand.undo:
        stand.undo.pop()()
    assert status_of(verdict.repro) == int(expected.stays)


def test_a_constant_that_a_package_reads_transposed(bundle_copy: Path, fused: Program, tmp_path: Path) -> None:
    """The code of a package of AOTInductor cannot be read back, but what it is given can."""
    path = bundle_copy / "aoti" / "weights.json"
    value = json.loads(path.read_text())
    value["tensors"]["up.weight"].update(shape=[24, 8], stride=[1, 24])
    path.write_text(json.dumps(value))
    manifest = seal(bundle_copy, read_manifest(bundle_copy))
    references = read_reference(bundle_copy / REFERENCE, manifest.contract)
    search = Search(tmp_path, 600)
    bundle = Bundle(bundle_copy, manifest)
    found = Comparison(fused, Plan(()), references, ["aoti"], search, bundle).blame(silent)
    (verdict,) = found.faults
    assert (verdict.cause, verdict.targets) == ("weights", ("aoti",))
    assert verdict.border is not None
    assert verdict.border.op == "fuseconv.linear_act.default"
    assert re.fullmatch(r"aoti/weights.json: \d+ of 192 elements of up.weight differ from the model's", verdict.detail)
    assert verdict.repro is not None
    assert status_of(verdict.repro) == 1


def status_of(script: Path) -> int:
    with quiet(), pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert isinstance(end.value.code, int)
    return end.value.code


def test_a_fault_that_vanishes_when_values_are_returned_is_found_by_bisection(stand: Stand) -> None:
    """As a compiler's may: it is there in a program of one output, and not in one that returns the values before."""
    right = exported.save

    def wrong(program: Any, path: Path, table: Any = None, others: Sequence[str] = ()) -> None:
        graph = copied(program.graph)
        calls = [node for node in graph.nodes if node.op == "call_function"]
        for node in calls if len(program.graph_signature.output_specs) == 1 and len(calls) > 2 else ():
            if node.target is torch.ops.fuseconv.add_layer_norm.default:
                node.args = (*node.args[:4], 0.5)
        right(with_graph(program, graph), path, table, others)

    stand.patch.setattr(exported, "save", wrong)
    found = blame(stand.model, plan=stand.bundle / "plan.json", target=["export"], output=stand.folder / "repros")
    (verdict,) = found.faults
    assert verdict.border is not None
    assert (verdict.cause, verdict.targets, verdict.border.node) == ("target", ("export",), "layer_norm_1")
    assert "bisection" in verdict.detail
    assert verdict.repro is not None


def test_nothing_new_is_begun_after_the_time_limit(stand: Stand) -> None:
    found = blame(stand.model, plan=stand.bundle / "plan.json", target=["export"], time_limit=0)
    assert (found.verdicts, found.compared) == ((), ())
    assert found.unable == {"export": "the time limit of 0 s was reached"}


def test_weights_that_do_not_give_the_reference_of_the_bundle(stand: Stand) -> None:
    """Without the original, the weights in the bundle are those of the original too, but its results are stored."""
    bundle, _ = weight_in_store(stand)
    (verdict,) = blame(bundle).faults
    assert (verdict.cause, verdict.border) == ("weights", None)
    assert "add --against MODEL" in verdict.detail


def test_a_conversion_whose_only_target_fails_has_the_verdict(stand: Stand) -> None:
    right = exported.save

    def wrong(program: Any, path: Path, table: Any = None, others: Sequence[str] = ()) -> None:
        graph = copied(program.graph)
        for node in graph.nodes:
            if node.target is torch.ops.aten.layer_norm.default:
                node.args = (*node.args[:4], 0.1, False)
        right(with_graph(program, graph), path, table, others)

    stand.patch.setattr(exported, "save", wrong)
    output = stand.folder / "failed.fuseconv"
    with pytest.raises(ParityError, match="they also differ without fusions") as failed:
        convert(stand.model, target=["export"], output=output, blame_limit=60)
    (verdict,) = failed.value.blame.faults
    assert (verdict.cause, verdict.targets, verdict.border.layer) == ("target", ("export",), "layers.0.norm")
    assert not output.exists()
