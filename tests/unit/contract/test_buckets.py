"""Buckets: their syntax, which models may have them, and that padding does not affect results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.saved_models import Perceptron
from torch import Tensor, nn

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle
from fuseconv.contract.buckets import Buckets, parse_buckets
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.parity import padding
from fuseconv.program.captured import Program
from fuseconv.runtime.cuda_graphs import ungraphed_reason
from fuseconv.runtime.model import load

BATCH = Buckets("batch", (1, 4, 16))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=1,8,32", Buckets("batch", (1, 8, 32))),
        ("n = 7", Buckets("n", (7,))),
        ("batch=", None),
        ("batch=0,8", None),
        ("batch=8,1", None),
        ("batch=8,8", None),
        ("batch=8,", None),
        ("batch:1,8", None),
        ("=8", None),
        ("batch=-8", None),
        ("batch=8.5", None),
    ],
)
def test_the_syntax(text: str, expected: Buckets | None) -> None:
    if expected is None:
        with pytest.raises(UsageError, match="cannot be parsed"):
            parse_buckets(text)
    else:
        assert parse_buckets(text) == expected
        assert parse_buckets(str(expected)) == expected


def test_sizes_are_rounded_up_and_left_alone_above_the_last() -> None:
    sizes = (0, 1, 2, 4, 5, 16, 17, 64)
    assert [BATCH.rounded(size) for size in sizes] == [0, 1, 4, 4, 16, 16, 17, 64]


def test_a_contract_keeps_them_in_json() -> None:
    plain = Contract(parse_inputs(["x=f32[batch:1..16,8]"]), ("y",))
    with_buckets = replace(plain, buckets=Buckets("batch", (4, 16), ("y",)))
    assert "buckets" not in plain.to_json()
    for contract in (plain, with_buckets):
        assert Contract.from_json(json.loads(json.dumps(contract.to_json()))) == contract


class Function(nn.Module):
    """A model of one function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def program(function: Callable[..., object], inputs: tuple[str, ...]) -> Program:
    module = function if isinstance(function, nn.Module) else Function(function)
    return small_bundle.program(module, inputs)


X = ("x=f32[batch:1..16,8]",)
IDS = ("ids=i64[batch:1..16,seq:1..32]",)


def attend(x: Tensor, mask: Tensor) -> Tensor:
    scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None] == 0, -torch.inf)
    return scores.softmax(-1) @ x  # NaN in a row whose mask leaves nothing


ROWS_APART: dict[str, tuple[Callable[..., object], tuple[str, ...], tuple[str, ...]]] = {
    "pointwise": (torch.tanh, X, ("output_0",)),
    "mlp": (Perceptron(), ("x=f32[batch:1..16,4]",), ("output_0",)),
    "attention": (attend, ("x=f32[batch:1..16,seq:1..32,8]", "mask=i64[batch,seq]"), ("output_0",)),
    "a_table_beside": (lambda x, table: (x @ table, table.sum(0)), (*X, "table=f32[8,5]"), ("output_0",)),
    "integers": (lambda ids: (ids * 3, ids > 0, ids.sum(1)), IDS, ("output_0", "output_1", "output_2")),
    "multiples": (lambda x: x.view(-1, 2, 8).flip(1).view(-1, 8), ("x=f32[batch:2..16:2,8]",), ("output_0",)),
    "every_op": (small_bundle.Block(fused=False), small_bundle.INPUTS, tuple(f"output_{i}" for i in range(4))),
}


@pytest.mark.parametrize("name", ROWS_APART)
def test_rows_that_do_not_meet_are_proved(name: str) -> None:
    function, inputs, outputs = ROWS_APART[name]
    sizes = (4, 16) if name == "multiples" else (1, 4, 16)
    proved = padding.prove(program(function, inputs), Buckets("batch", sizes))
    assert proved.contract.buckets == Buckets("batch", sizes, outputs)


ROWS_THAT_MEET = {
    "mean": lambda x: x - x.mean(0),
    "softmax": lambda x: x.softmax(0),
    "running_sum": lambda x: x.flip(0).cumsum(0).flip(0),
    "number_of_rows": lambda x: x * x.shape[0],
    "sum_without_the_dim": lambda x: (x.tanh(), x.sum(0)),
    "only_nan_shows": lambda x: x + 0 * x.mean(0),
    "only_large_values_show": lambda x: torch.where((x.nan_to_num(0.0) > 6).any(), x + 1, x),
    "order": lambda x: x.sort(0).values,
}


@pytest.mark.parametrize("name", ROWS_THAT_MEET)
def test_rows_that_meet_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="depends on padding: the model mixes rows of dim 'batch'") as caught:
        padding.prove(program(ROWS_THAT_MEET[name], X), BATCH)
    assert caught.value.exit_status == 4
    assert "remove --bucket" in caught.value.fix


def test_large_integers_show_too() -> None:
    table = nn.Embedding(100, 8)
    meeting = program(lambda ids: table(ids) + ids.float().mean(), ("ids=i64[batch:1..16,seq:1..32]",))
    with pytest.raises(UnsupportedError, match="depends on padding: the model mixes rows of dim 'batch'"):
        padding.prove(meeting, BATCH)


@pytest.mark.parametrize(
    ("function", "inputs", "buckets", "message"),
    [
        (torch.tanh, X, Buckets("seq", (4,)), "no dim seq"),
        (torch.tanh, ("x=f32[3,8]",), BATCH, "no dim batch"),
        (torch.tanh, IDS, Buckets("seq", (4,)), "seq is axis 1 of input ids"),
        (lambda x: x @ x, ("x=f32[batch:2..16,batch]",), BATCH, "batch is axis 1 of input x"),
        (torch.tanh, X, Buckets("batch", (4, 32)), "sizes of batch:1..16 cannot be rounded up to 32"),
        (
            torch.tanh,
            ("x=f32[batch:2..16:2]",),
            Buckets("batch", (3, 8)),
            "bucket size 3 is not a multiple of 2, as batch:2..16:2 requires",
        ),
        (torch.tanh, X, Buckets("batch", (1,)), "sizes of batch:1..16 cannot be rounded up to 1,"),
    ],
)
def test_dims_that_cannot_have_buckets_are_usage_errors(
    function: Callable[..., object], inputs: tuple[str, ...], buckets: Buckets, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        padding.prove(program(function, inputs), buckets)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.T + 1, lambda x: x @ x.T, lambda x: x.reshape(-1), lambda x: torch.cat([x, x])],
    ids=["second_axis", "both_axes", "rows_flattened", "twice_the_rows"],
)
def test_an_output_with_the_dim_elsewhere_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(UnsupportedError, match="output output_0 uses batch on an axis other than the first"):
        padding.prove(program(function, X), BATCH)


def test_an_artifact_in_which_padding_shows_fails_by_name(tmp_path: Path) -> None:
    original = padding.prove(program(torch.tanh, X), BATCH)
    leaking = program(lambda x: torch.tanh(x) + 0 * x.mean(0), X)
    written = {}
    for name, fused in (("sound", original), ("leaking", replace(leaking, contract=original.contract))):
        output = tmp_path / f"{name}.fuseconv"
        written[name] = small_bundle.write_bundle(original, fused, output, ["torchscript"], scratch=tmp_path)
    cases = {name: [row["case"] for row in manifest.parity if not row["ok"]] for name, manifest in written.items()}
    assert cases == {"sound": [], "leaking": ["NaN", "infinities", "given, padded to batch 4"]}
    assert "given, padded to batch 4" in [row["case"] for row in written["sound"].parity]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "model.pt2"
    torch.export.save(program(Perceptron(), ("x=f32[batch:1..16,4]",)).exported, path)
    return path


@pytest.mark.parametrize(("bucket", "status"), [("batch=4,16", 0), ("batch=4,99", 2), ("rows=4", 2), ("batch=four", 2)])
def test_convert_keeps_them_in_the_manifest(
    bucket: str, status: int, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "model.fuseconv"
    words = ["--input", "x=f32[batch:1..16,4]", "--target", "torchscript", "-o", str(output)]
    assert cli.main(["convert", str(source), "--bucket", bucket, *words]) == status, capsys.readouterr().err
    assert output.exists() == (status == 0)
    if status == 0:
        contract = open_bundle(output).contract
        assert contract.buckets is not None
        assert str(contract.buckets) == bucket
        assert contract.buckets.outputs == contract.outputs
        assert load(output)(torch.zeros(3, 4)).shape[0] == 3


@pytest.mark.parametrize(
    ("choice", "device", "target", "reason"),
    [
        ("auto", "cuda", "aoti", None),
        ("auto", "cuda", "torchscript", None),
        ("auto", "cuda", "export", "the target export does not support CUDA graphs"),
        ("auto", "cuda", "onnx-plugin", "the target onnx-plugin does not support CUDA graphs"),
        ("auto", "cpu", "aoti", "the bundle is for cpu"),
        (False, "cuda", "aoti", "cuda_graphs is False"),
        (True, "cuda", "torchscript", None),
    ],
)
def test_what_is_captured(choice: bool | str, device: str, target: str, reason: str | None) -> None:
    assert ungraphed_reason(choice, device, target) == reason  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choice", "device", "target", "message"),
    [
        (True, "cpu", "aoti", "CUDA graphs cannot be used: the bundle is for cpu"),
        (True, "cuda", "onnx", "CUDA graphs cannot be used: the target onnx does not support CUDA graphs"),
        ("always", "cuda", "aoti", "cuda_graphs is 'always'"),
    ],
)
def test_graphs_that_cannot_be_are_usage_errors(choice: bool | str, device: str, target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ungraphed_reason(choice, device, target)  # type: ignore[arg-type]


def test_a_model_says_why_it_has_no_graphs(tmp_path: Path) -> None:
    bundle, plain = tmp_path / "plain.fuseconv", program(torch.tanh, X)
    small_bundle.write_bundle(plain, plain, bundle, ["torchscript"], scratch=tmp_path)
    status = load(bundle, "torchscript").cuda_graphs
    assert (status.shapes, status.memory, status.reason) == ((), 0, "the bundle is for cpu")
    assert load(bundle, "torchscript", cuda_graphs=False).cuda_graphs.reason == "cuda_graphs is False"
    with pytest.raises(UsageError, match="the bundle is for cpu"):
        load(bundle, "torchscript", cuda_graphs=True)
