"""Serialized graphs: a real one passes, and one that would run code is rejected."""

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseconv.errors import RefusedError
from fuseconv.sources.serialized import screen_program


@pytest.fixture(scope="module")
def program() -> Any:
    """The JSON of a program with symbolic sizes, guards and containers."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor, pair: tuple[Tensor, Tensor]) -> dict[str, Any]:
            y = self.linear(x).reshape(x.shape[0], -1, 2)
            return {"y": torch.nn.functional.gelu(y, approximate="tanh"), "z": [pair[0] + x.shape[0], pair[1].max()]}

    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(
        Model(),
        (torch.ones(3, 4), (torch.ones(2), torch.ones(3))),
        dynamic_shapes=({0: batch}, ({}, {0: torch.export.Dim("n", min=2, max=9)})),
    )
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return json.loads(archive.read(next(name for name in archive.namelist() if name.endswith("models/model.json"))))


def nodes(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"]


def sizes(program: Any) -> Any:
    return program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]


def signature(program: Any) -> Any:
    return program["graph_module"]["module_call_graph"][0]["signature"]


def spec(context: Any, kind: str = "builtins.dict") -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


EVIL = "__import__('os').system('touch ran')"


def edit_expression(text: str) -> Callable[[Any], object]:
    return lambda program: sizes(program)[0].update(as_expr={"expr_str": text, "hint": {"as_int": 3}})


def edit_guard(text: str) -> Callable[[Any], object]:
    return lambda program: program.update(guards_code=[text])


def edit_target(text: str) -> Callable[[Any], object]:
    return lambda program: nodes(program)[0].update(target=text)


ATTACKS = {
    "expression calls": edit_expression(EVIL),
    "expression walks classes": edit_expression("().__class__.__base__.__subclasses__()"),
    "expression has an attribute": edit_expression("s0.func"),
    "expression has text that sympy reads again": edit_expression(f'Max(s0, "{EVIL}")'),
    "expression has text in a number": edit_expression(f'Integer("{EVIL}")'),
    "expression is a lambda": edit_expression("(lambda: s0)()"),
    "expression is a comprehension": edit_expression("[s0 for s0 in (1,)]"),
    "expression never ends": edit_expression("9**9**9**9"),
    "expression never ends, called": edit_expression("Pow(9, Pow(9, Pow(9, 9)))"),
    "expression is a large power": edit_expression("2**1000000000"),
    "expression is a factorial": edit_expression("factorial(1000000)"),
    "expression is deep": edit_expression("(" * 5000 + "s0" + ")" * 5000),
    "expression is long": edit_expression("s0+" * 50_000 + "s0"),
    "expression starts in a statement": edit_expression("s0\nimport os"),
    "range is of an expression that calls": lambda program: program["range_constraints"].update({EVIL: {}}),
    "guard calls": edit_guard(EVIL),
    "guard walks attributes": edit_guard("L['x'].__class__"),
    "guard closes the call": edit_guard("True) or print('evil'"),
    "guard calls a function of torch": edit_guard("torch.load(L['x'].size()[0])"),
    "guard calls a function of a module of torch": edit_guard("torch.os.abort()"),
    "guard calls code in an argument": edit_guard(f"torch.sym_max(L['x'].size()[0], {EVIL})"),
    "guard calls what it gets": edit_guard("L['x'].size()[0].__init__()"),
    "target is a Python function": edit_target("torch.os.system"),
    "target is a loader": edit_target("torch.hub.load"),
    "target is torch.load": edit_target("torch.load"),
    "target is a private part of ops": edit_target("torch.ops.aten.__init__"),
    "target loads a library": edit_target("torch.ops.load_library"),
    "target gets attributes": edit_target("_operator.attrgetter"),
    "target opens a file": edit_target("torch.ops.aten.from_file.default"),
    "target writes a file": edit_target("torch.ops.aten.save.default"),
    "target is of an unknown library": edit_target("torch.ops.image.write_file.default"),
    "target is a dotted operator": edit_target("_operator.__class__.__base__"),
    "spec imports a default factory": lambda program: signature(program).update(
        in_spec=spec(
            {"default_factory_module": "antigravity", "default_factory_name": "fly", "dict_context": []},
            "collections.defaultdict",
        )
    ),
    "spec imports an enum": lambda program: signature(program).update(
        out_spec=spec(json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "y"}]))
    ),
    "spec is an unknown class": lambda program: signature(program).update(out_spec=spec("[]", "evil.Class")),
    "spec has code for a key": lambda program: signature(program).update(out_spec=spec('["a\\"]=(__import__"]')),
    "spec is not JSON": lambda program: signature(program).update(in_spec="evil"),
    "input name is code": lambda program: program["graph_module"]["graph"]["inputs"][0].update(
        as_tensor={"name": f"x={EVIL}"}
    ),
    "parameter name is code": lambda program: program["graph_module"]["signature"]["input_specs"][0][
        "parameter"
    ].update(parameter_name=f'a"), {EVIL}, ("'),
    "argument name is code": lambda program: signature(program).update(forward_arg_names=[f"x={EVIL}"]),
    "node name is code": lambda program: nodes(program)[0].update(name=f"x = {EVIL}"),
    "module name is code": lambda program: program["graph_module"]["module_call_graph"][1].update(fqn=f"x({EVIL})"),
}


def test_a_real_program_passes(program: Any) -> None:
    screen_program(json.dumps(program).encode(), "a.pt2")


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_on_the_graph_are_refused(program: Any, attack: str) -> None:
    changed = json.loads(json.dumps(program))
    ATTACKS[attack](changed)
    assert changed != program
    with pytest.raises(RefusedError, match="would run code") as caught:
        screen_program(json.dumps(changed).encode(), "a.pt2")
    assert caught.value.where == "a.pt2"


def test_an_op_of_another_library_is_named(program: Any) -> None:
    changed = json.loads(json.dumps(program))
    edit_target("torch.ops.transformers.other.default")(changed)
    with pytest.raises(RefusedError, match=r"of another library: it calls torch\.ops\.transformers\.") as caught:
        screen_program(json.dumps(changed).encode(), "a.pt2")
    assert "without that operator" in caught.value.fix


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_damaged_graphs_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="not valid JSON"):
        screen_program(data, "a.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "2*s0 + 1",
        "s0**2",
        "Pow(Symbol('s41', positive=True, integer=True), Integer(2))",
        "Symbol('s31', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s31', positive=True, integer=True))",
        "FloorDiv(Symbol('s1', integer=True), Integer(2))",
        "Max(1, Mod(s0, 8))",
        "Float('0.5', precision=53)",
        "Piecewise((s0, s0 < 4), (4, True))",
    ],
)
def test_symbolic_sizes_pass(program: Any, text: str) -> None:
    changed = json.loads(json.dumps(program))
    edit_expression(text)(changed)
    screen_program(json.dumps(changed).encode(), "a.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] % 2 == 0",
        "L['args'][0].size()[1] <= 512 and 2 <= L['x'].size()[1]",
        "Mod(L['x'].size()[0], 2) != 0",
        "torch.sym_float(L['x'].size()[0]) > torch.sym_max(2, L['x'].size()[1])",
        "torch.sym_min(L['x'].size()[1], L['x'].size()[1]*L['x'].size()[0]) == L['x'].size()[1]",
    ],
)
def test_guards_pass(program: Any, text: str) -> None:
    changed = json.loads(json.dumps(program))
    edit_guard(text)(changed)
    screen_program(json.dumps(changed).encode(), "a.pt2")
