"""A loaded model returns the right numbers or a named error, and loads no foreign code."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch
from support.calls import KEEP, MAX_BATCH, MAX_SEQ, SKIP, VIOLATIONS, X, draw
from support.libraries import with_another_schema
from support.small_bundle import Block
from torch import Tensor

from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError, RefusedError, UnsupportedError, UpstreamError, UsageError
from fuseconv.runtime.model import Model, load
from fuseconv.targets import PREFERENCE


@pytest.fixture(scope="module")
def models(bundle: Path) -> dict[str, Model]:
    return {target: load(bundle, target) for target in PREFERENCE}


@pytest.fixture(scope="module")
def eager() -> Block:
    return Block(fused=False).eval()


def check(model: Model, eager: Block, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        expected = eager(*inputs)
    outputs = model(*inputs)
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", PREFERENCE)
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (1, MAX_SEQ), (MAX_BATCH, 1), (MAX_BATCH, MAX_SEQ), (3, 7), (2, 2)])
def test_every_size_in_range_is_right(
    target: str, batch: int, seq: int, models: dict[str, Model], eager: Block
) -> None:
    check(models[target], eager, draw(batch, seq))


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def strided(t: Tensor) -> Tensor:
    return torch.stack([t, torch.zeros_like(t)], -1)[..., 0]


def unaligned(t: Tensor) -> Tensor:
    flat = torch.empty(t.numel() + 1, dtype=t.dtype)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def expanded(t: Tensor) -> Tensor:
    return t[:, :1].expand_as(t)


def requiring_gradients(t: Tensor) -> Tensor:
    return t.clone().requires_grad_() if t.is_floating_point() else t


def negated_when_read(t: Tensor) -> Tensor:
    return torch._neg_view(-t) if t.is_floating_point() else t


def imaginary_parts_of_a_conjugate(t: Tensor) -> Tensor:
    return torch.complex(t, -t).conj().imag if t.is_floating_point() else t


LAYOUTS = (
    transposed,
    strided,
    unaligned,
    expanded,
    requiring_gradients,
    negated_when_read,
    imaginary_parts_of_a_conjugate,
)


@pytest.mark.parametrize("target", PREFERENCE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_right(
    target: str, layout: Callable[[Tensor], Tensor], models: dict[str, Model], eager: Block
) -> None:
    inputs = tuple(layout(t) for t in draw(3, 5))
    check(models[target], eager, inputs)
    assert not models[target](*inputs)[0].requires_grad


@pytest.mark.parametrize("target", PREFERENCE)
@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.enable_grad, partial(torch.autocast, "cpu", torch.bfloat16)]
)
def test_modes_of_the_caller_change_no_number(
    target: str, mode: Callable[[], AbstractContextManager[object]], models: dict[str, Model]
) -> None:
    inputs = draw(3, 5)
    expected = models[target](*inputs)
    with mode():
        outputs = models[target](*inputs)
    for output, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, value, rtol=0, atol=0)


@pytest.mark.parametrize("target", PREFERENCE)
def test_outputs_live_on_after_the_call(target: str, models: dict[str, Model]) -> None:
    first = models[target](*draw(3, 5))
    before = [output.clone() for output in first]
    for _ in range(5):
        models[target](*draw(4, 6))
    gc.collect(1)  # of what the calls left; to look at all objects of the session takes two seconds
    for output, value in zip(first, before, strict=True):
        assert torch.equal(output, value)


@pytest.mark.parametrize("target", PREFERENCE)
def test_threads_may_call_one_model(target: str, models: dict[str, Model], eager: Block) -> None:
    calls = [draw(batch, seq) for batch in (1, 3, MAX_BATCH) for seq in (1, 5, MAX_SEQ)] * 4
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(check, models[target], eager, inputs) for inputs in calls]:
            done.result()


@pytest.mark.parametrize("name", VIOLATIONS)
@pytest.mark.parametrize("target", PREFERENCE)
def test_a_call_against_the_contract_is_an_error_and_never_a_number(
    name: str, target: str, models: dict[str, Model]
) -> None:
    args, kwargs, message = VIOLATIONS[name]
    with pytest.raises(ContractError, match=message):
        models[target](*args, **kwargs)  # type: ignore[arg-type]


def test_inputs_go_by_name_and_outputs_have_names(models: dict[str, Model]) -> None:
    model = models["export"]
    by_name = model(keep=KEEP, x=X, skip=SKIP)
    assert by_name._fields == model.contract.outputs
    assert torch.equal(by_name.output_0, model(X, SKIP, keep=KEEP)[0])
    assert (model.target, model.device) == ("export", "cpu")
    assert repr(model).startswith("<export on cpu: (")
    assert repr(model).endswith(f") -> ({', '.join(model.contract.outputs)})>")


@pytest.mark.parametrize(("names", "kind"), [(("y",), Tensor), (("y", "class"), tuple)])
def test_one_output_comes_alone(names: tuple[str, ...], kind: type) -> None:
    contract = Contract(parse_inputs(["x=f32[2]"]), names)
    model = Model(contract, "export", lambda x: (x,) * len(names))
    result = model(torch.ones(2))
    assert isinstance(result, kind)
    if kind is tuple:
        assert getattr(result, "_fields", None) == ("y", "_1")


def test_a_failing_artifact_is_an_upstream_error_with_the_shapes() -> None:
    def fail(x: Tensor) -> tuple[Tensor, ...]:
        raise MemoryError("no memory")

    model = Model(Contract(parse_inputs(["x=f32[2]"]), ("y",)), "aoti", fail)
    with pytest.raises(UpstreamError, match="the target aoti failed: no memory") as caught:
        model(torch.ones(2))
    assert "[2]" in caught.value.where


def test_the_check_of_a_call_takes_less_than_5_microseconds() -> None:
    contract = Contract(
        parse_inputs(["ids=i64[batch:1..64,seq:2..512]", "mask=i64[batch,seq]", "kind=i64[batch,seq]"]), ()
    )
    inputs = tuple(torch.zeros(3, 5, dtype=torch.int64) for _ in range(3))

    def measure(count: int = 2000) -> float:
        start = time.thread_time()
        for _ in range(count):
            contract.bind(inputs, {})
        return (time.thread_time() - start) / count * 1e6

    assert min(measure() for _ in range(20)) < 5


@pytest.mark.parametrize("gone", [(), ("aoti",), ("aoti", "export"), ("aoti", "export", "torchscript")])
def test_the_default_target_is_the_best_one_there_is(gone: tuple[str, ...], bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    left = {name: path for name, path in manifest.targets.items() if name not in gone}
    for name in gone:
        shutil.rmtree(bundle_copy / name)
    seal(bundle_copy, manifest.model_copy(update={"targets": left}))
    model = load(bundle_copy)
    assert model.target == PREFERENCE[len(gone)]
    for name in gone:
        with pytest.raises(UsageError, match=f"no target {name}"):
            load(bundle_copy, name)


def test_a_damaged_bundle_is_not_loaded(bundle_copy: Path) -> None:
    path = bundle_copy / "torchscript/model.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RefusedError, match=r"torchscript/model\.pt"):
        load(bundle_copy, "export")


def test_another_device_is_refused(bundle: Path) -> None:
    with pytest.raises(UnsupportedError, match="the bundle is for cpu, not cuda:0"):
        load(bundle, device="cuda:0")
    assert load(bundle, "torchscript", device="cpu").device == "cpu"


@pytest.mark.parametrize(
    ("field", "value", "target", "message"),
    [
        ("torch", "99.1.0", "export", "torch 99.1.0, but this is"),
        ("torch", "99.1.0", "aoti", "torch 99.1.0, but this is"),
        ("torch", "99.1.0", "torchscript", "torch 99.1.0, but this is"),
        ("onnxruntime", "99.1.0", "onnx", "ONNX Runtime 99.1.0, but this is"),
        ("machine", "sparc", "aoti", "a sparc machine, but this is"),
        ("cpu", "AMX", "aoti", "a CPU with AMX, but this one has"),
        ("gpu", "9.0", "torchscript", "GPU architecture 9.0, but this is None"),
    ],
)
def test_an_artifact_from_elsewhere_is_refused_before_it_is_opened(
    field: str, value: str, target: str, message: str, bundle_copy: Path
) -> None:
    manifest = open_bundle(bundle_copy)
    artifact = bundle_copy / manifest.targets[target]
    artifact.write_bytes(b"not an artifact: opening it would be another error")
    environment = manifest.environment.model_copy(update={field: value})
    seal(bundle_copy, manifest.model_copy(update={"environment": environment}))
    with pytest.raises(UnsupportedError, match=message) as caught:
        load(bundle_copy, target)
    assert caught.value.exit_status == 4


@pytest.mark.parametrize("field", ["python", "platform", "onnx", "cuda"])
def test_other_differences_do_not_matter(field: str, bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    environment = manifest.environment.model_copy(update={field: "0.0"})
    seal(bundle_copy, manifest.model_copy(update={"environment": environment}))
    load(bundle_copy, "torchscript")


class TestTheOpLibrary:
    NAME = "lib/libfuseconv_cpu.so"

    def test_missing(self, bundle_copy: Path) -> None:
        (bundle_copy / self.NAME).unlink()
        with pytest.raises(RefusedError, match=self.NAME):
            load(bundle_copy)

    def test_of_another_hash(self, bundle_copy: Path) -> None:
        with (bundle_copy / self.NAME).open("ab") as file:
            file.write(b"\0")
        with pytest.raises(RefusedError, match=self.NAME):
            load(bundle_copy)

    @pytest.mark.parametrize("part", [NAME, "lib", "."])
    def test_that_everybody_may_write(self, part: str, bundle_copy: Path) -> None:
        path = bundle_copy / part
        path.chmod(path.stat().st_mode | 0o002)
        with pytest.raises(RefusedError, match="is writable by everyone") as caught:
            load(bundle_copy)
        assert str(path.absolute()) in caught.value.where

    def test_that_is_not_a_library(self, bundle_copy: Path) -> None:
        manifest = open_bundle(bundle_copy)
        (bundle_copy / self.NAME).write_bytes(b"\x7fELF nonsense")
        seal(bundle_copy, manifest)
        with pytest.raises(UnsupportedError, match="failed to load"):
            load(bundle_copy)

    def test_with_another_schema_of_an_op(self, bundle: Path, bundle_copy: Path) -> None:
        other, manifest = with_another_schema(bundle_copy / self.NAME), open_bundle(bundle)
        seal(bundle_copy, manifest)
        for _ in range(2):  # the library stays in the process, and stays refused
            with pytest.raises(UnsupportedError, match="the op add_relu has two schemas") as caught:
                load(bundle_copy, "torchscript")
            assert caught.value.where == str(other)
            assert f"add_relu(Tensor a, Tensor z) -> Tensor in {other}" in caught.value.what
            assert "load the bundle in another process" in caught.value.fix
        load(bundle, "torchscript")

    def test_planted_in_the_working_directory(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "lib").mkdir()
        for place in (tmp_path / self.NAME, tmp_path / "libfuseconv_cpu.so"):
            place.write_bytes(b"planted")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        loaded: list[str] = []
        monkeypatch.setattr(torch.ops, "load_library", lambda path: loaded.append(str(path)))
        load(bundle, "torchscript")
        assert loaded == [str(bundle / self.NAME)]
