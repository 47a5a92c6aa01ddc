"""The closed list of ops: every op of this torch is classified; dangerous ops are rejected, model ops are not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs

from fuseconv.errors import RefusedError, RuleError, UnsupportedError
from fuseconv.graph.nodes import find_op, why_no_op
from fuseconv.matching.pattern import check_rule_ops
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import Rule
from fuseconv.sources.serialized import screen_program
from fuseconv.untrusted import permitted
from fuseconv.untrusted.permitted import lookup, refusal

EVERY = sorted(
    f"{namespace}.{packet}.{overload or 'default'}"
    for namespace, _, rest in (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    for packet, _, overload in [rest.partition(".")]
)
OPS = {name: op for name in EVERY if (op := lookup(name)) is not None}

REFUSED = {
    "aten.from_file.default": "filename",
    "aten.save.default": "TorchScript",
    "aten.format.default": "TorchScript",
    "aten.add.str": "TorchScript",
    "aten.Generator.default": "TorchScript",
    "aten.set_.source_Storage": "other than its values",
    "aten.set_.source_Tensor_storage_offset": "other than its values",
    "aten.set_data.default": "other than its values",
    "aten.resize_.default": "other than its values",
    "aten.resize_as_.default": "other than its values",
    "aten.pin_memory.default": "other than its values",
    "aten.record_stream.default": "other than its values",
    "prims.device_put.default": "other than its values",
    "prims.copy_to.default": "other than its values",
    "aten.add.out": "an out argument",
    "aten._reshape_alias.default": "internal",
    "aten._cudnn_rnn.default": "internal",
    "aten._cudnn_init_dropout_state.default": "internal",
    "aten._cufft_set_plan_cache_max_size.default": "internal",
    "aten._nested_view_from_buffer.default": "internal",
    "aten._sparse_coo_tensor_unsafe.default": "internal",
    "aten._make_dual.default": "internal",
    "aten._print.default": "internal",
    "aten._foobar.default": "internal",
    "aten._test_string_default.default": "internal",
    "aten._resize_output_.default": "internal",
    "aten.fbgemm_linear_fp16_weight.default": "not strided",
    "aten.mkldnn_rnn_layer.default": "not strided",
    "aten.quantized_lstm_cell.default": "not strided",
    "aten.cudnn_convolution.default": "not strided",
    "aten.to_sparse.default": "not strided",
    "aten.sparse_coo_tensor.indices": "not strided",
    "aten.to_mkldnn.default": "not strided",
    "aten.nested_to_padded_tensor.default": "not strided",
    "aten.quantize_per_tensor.default": "not strided",
    "aten.q_scale.default": "not strided",
    "quantized.linear.default": "can do anything",
    "profiler._record_function_enter.default": "can do anything",
    "mkldnn._linear_pointwise.default": "can do anything",
    "inductor._alloc_from_pool.default": "can do anything",
    "inductor._reinterpret_tensor.default": "can do anything",
    "_c10d_functional.broadcast.default": "can do anything",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_dangerous_is_refused_and_said_why(name: str) -> None:
    op = lookup(name)
    if op is None:
        assert name.startswith("_c10d"), "a build of torch without collectives; all others have every op"
        return
    assert REFUSED[name] in refusal(op)
    assert find_op(name) is None
    assert why_no_op(name).startswith(f"the op {name} is not permitted: ")


def test_every_op_that_this_torch_has_is_decided() -> None:
    assert len(OPS) > 3000
    allowed = {name for name, op in OPS.items() if not refusal(op)}
    assert 1000 < len(allowed) < len(OPS) / 2
    for name in allowed:
        schema = OPS[name]._schema
        kinds = " ".join(str(one.real_type) for one in (*schema.arguments, *schema.returns))
        assert not any(word in kinds for word in ("Storage", "Stream", "__torch__", "Dict", "QScheme", "Any")), name
        assert name.split(".")[0] in permitted.NAMESPACES
        texts = {one.name for one in schema.arguments if "str" in str(one.real_type)}
        assert not texts & {"filename", "path", "s", "api_name", "a", "b"}, name
        assert not any(one.is_out for one in schema.arguments), name


def test_what_models_are_made_of_is_permitted() -> None:
    """The core set, but for those that write into other tensors; and whatever the rules that come with us name."""
    refused = {name for name, op in OPS.items() if torch.Tag.core in op.tags and refusal(op)}
    assert refused == {"aten.atan2.out", "aten.resize_.default"}
    check_rule_ops(load_rules())


IN_PYTHON = re.compile(r'(?:Library\(\s*"(\w+)"|(?:custom_op|triton_op)\(\s*f?"(\w+)::)')
IN_DOCSTRINGS = {"example", "mylib", "mylibrary", "mymodule", "_", "__lib_path__"}


def test_trust_in_a_pack_opens_no_namespace_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of those that are loaded, nor of those that torch's Python code registers when it is first imported."""
    monkeypatch.setattr(permitted, "_trusted", True)
    assert permitted.is_permitted_namespace("somebodys")
    files = [path.read_text(errors="replace") for path in Path(torch.__file__).parent.rglob("*.py")]
    in_python = {one or other for text in files for one, other in IN_PYTHON.findall(text)} - IN_DOCSTRINGS
    assert {"flex_lib", "fsdp", "streams"} <= in_python
    libraries = {"timm", "torchaudio", "torchvision", "transformers"}  # that another test may have imported
    for namespace in ({name.split(".")[0] for name in OPS} | in_python) - permitted.NAMESPACES - libraries:
        assert not permitted.is_permitted_namespace(namespace), namespace


HIT = ["x: f32[8, 8]", "y = aten.clamp.default(x, 0, 6)", "return y"]
WRITES = ["x: f32[8, 8]", "f = aten.from_file.default('/nowhere/f', True, 8, dtype=u8)", "return x, f"]
NAMING: dict[str, dict[str, Any]] = {
    "match": {"match": ["f = aten.from_file.default('/nowhere/f', True, 8)", "y = aten.add.Tensor(x, f)"]},
    "replace": {"replace": ["f = aten.from_file.default('/nowhere/f', True, 8)", "y = aten.add.Tensor(x, f)"]},
    "hit": {"examples": {"hit": [WRITES]}},
    "miss": {"examples": {"miss": [{"program": WRITES, "reason": "none"}]}},
}


def rule(**changed: Any) -> Rule:
    usual = {
        "name": "bounded",
        "stage": "fuse",
        "doc": "A rule.",
        "match": ["y = aten.clamp.default(x, 0, 6)"],
        "replace": ["y = aten.hardtanh.default(x, 0, 6)"],
        "examples": {"hit": [HIT]},
    }
    return Rule.model_validate({**usual, **changed})


@pytest.mark.parametrize("part", NAMING)
def test_no_part_of_a_rule_may_name_such_an_op(part: str) -> None:
    with pytest.raises(RuleError, match=r"aten\.from_file\.default is not permitted: its argument filename is a"):
        check_rules([rule(**NAMING[part])])


OUT_OF_PROPORTION = {
    "too many bytes": ["z = aten.zeros.default([100000, 100000])", "s = aten.sum.default(z)"],
    "another device": ["z = aten.zeros.default([], device='meta')", "s = aten.sum.default(z)"],
}


@pytest.mark.parametrize("name", OUT_OF_PROPORTION)
def test_a_replacement_stays_in_proportion(name: str) -> None:
    lines = [*OUT_OF_PROPORTION[name], "h = aten.hardtanh.default(x, 0, 6)", "y = aten.add.Tensor(h, s)"]
    (row, *_) = check_rules([rule(replace=lines)])
    assert not row.ok
    assert "to return" in row.detail


def test_a_plan_is_held_to_the_same_list() -> None:
    x = torch.ones(8, 8)
    program = programs.capture(programs.Function(lambda _, x: (torch.clamp(x, 0, 6),)), x)
    found = plan(program, [rule()], device="cpu", targets=())
    edited = json.loads(found.to_json())
    edited["steps"][0]["replace"] = [
        "f = aten.from_file.default('/nowhere/f', True, 64)",
        "y = aten.add.Tensor(x, f)",
    ]
    with pytest.raises(RuleError, match=r"aten\.from_file\.default is not permitted"):
        rewrite(program, Plan.from_json(json.dumps(edited)))


def archive(target: str) -> bytes:
    node = {"target": target, "inputs": [], "outputs": []}
    return json.dumps({"graph_module": {"graph": {"nodes": [node]}}}).encode()


@pytest.mark.parametrize("name", sorted({*REFUSED, "c10d.allreduce_.default", "debug_mode_ops.x.default"}))
def test_an_archive_is_held_to_the_same_list(name: str) -> None:
    with pytest.raises(RefusedError, match="would run code"):
        screen_program(archive(f"torch.ops.{name}"), "a.pt2")


@pytest.mark.parametrize("name", ["call_torchbind", "aoti_call_delegate", "triton_kernel_wrapper_mutation", "print"])
def test_programs_within_programs_are_a_closed_list(name: str) -> None:
    with pytest.raises(RefusedError, match="would run code"):
        screen_program(archive(f"torch.ops.higher_order.{name}"), "a.pt2")


def test_an_op_of_a_newer_torch_is_no_attack() -> None:
    with pytest.raises(UnsupportedError, match="does not have"):
        screen_program(archive("torch.ops.aten.softmax_of_2031.default"), "a.pt2")
