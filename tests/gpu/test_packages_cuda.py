"""A package is for the architecture of its GPU: it loads there, and is refused, and compiled again, elsewhere."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support.heads import Heads, archive
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import interpolate, scaled_dot_product_attention, silu

import fuseconv
from fuseconv.bundle.files import WEIGHTS, measure_file
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.errors import UnsupportedError
from fuseconv.pipeline.convert import convert
from fuseconv.runtime.environment import environment
from fuseconv.runtime.model import load
from fuseconv.sources import Options

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

X = torch.linspace(-2, 2, 160).reshape(2, 5, 16)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    model = archive(Heads(0), folder / "model.pt2")
    options = Options(device="cuda")
    targets = ("aoti", "export", "torchscript")
    convert(model, target=targets, options=options, tune="none", output=folder / "heads.fuseconv")
    return folder / "heads.fuseconv"


@pytest.fixture
def foreign(bundle: Path, tmp_path: Path) -> Path:
    """The bundle as a GPU of another architecture would have made it."""
    path = Path(shutil.copytree(bundle, tmp_path / "foreign.fuseconv"))
    manifest = open_bundle(path)
    made = manifest.environment.model_copy(update={"gpu": "7.5"})
    seal(path, manifest.model_copy(update={"environment": made}))
    return path


def test_the_package_of_this_gpu_is_named_by_its_compute_capability_and_loads(bundle: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    assert [one.environment.architecture for one in open_bundle(bundle).packages_of("aoti")] == [f"sm_{major}{minor}"]
    model = load(bundle)
    assert (model.target, model.passed_over) == ("aoti", {})
    torch.testing.assert_close(model(X.cuda()).cpu(), Heads(0)(X), rtol=1e-3, atol=1e-3)
    assert fuseconv.add(bundle).report is None


def test_the_package_of_another_architecture_is_refused_with_the_command_that_adds_one(foreign: Path) -> None:
    here = environment("cuda").gpu
    with pytest.raises(UnsupportedError) as caught:
        load(foreign)
    assert caught.value.what == f"the target aoti was built for GPU architecture 7.5, but this is {here}"
    assert caught.value.fix == "run `fuseconv add BUNDLE` on this machine, or load another target"


def test_add_compiles_the_package_of_this_gpu_with_the_weights_of_the_bundle(foreign: Path) -> None:
    before, here = measure_file(foreign / WEIGHTS), environment("cuda").architecture
    done = fuseconv.add(foreign)
    assert done.report is not None
    assert (done.report.ok, done.architecture, done.architectures) == (True, here, ("sm_75", here))
    assert measure_file(foreign / WEIGHTS) == before
    assert not (foreign / f"aoti-{here}" / WEIGHTS).exists()
    model = load(foreign)
    assert (model.target, model.passed_over) == ("aoti", {})
    torch.testing.assert_close(model(X.cuda()).cpu(), Heads(0)(X), rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match=r"the target export was built for GPU architecture 7\.5"):
        load(foreign, "export")


def test_several_packages_of_other_architectures_are_named(foreign: Path) -> None:
    fuseconv.add(foreign)
    manifest = open_bundle(foreign)
    (own,) = manifest.packages
    other = own.model_copy(update={"environment": own.environment.model_copy(update={"gpu": "8.0"})})
    seal(foreign, manifest.updating_packages([other]))
    with pytest.raises(UnsupportedError) as caught:
        load(foreign, "aoti")
    here = environment("cuda").architecture
    assert caught.value.what == f"the target aoti has packages for sm_75, sm_80, but this machine is {here}"


class SelfAttention(nn.Module):
    """Attention without a mask, over tokens [B, L, 3 * 2 * 16]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in x.chunk(3, -1))
        return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_package_computes_attention_of_dynamic_sizes_without_a_mask(dtype: torch.dtype, tmp_path: Path) -> None:
    """It calls Flash Attention, not all of whose results every torch can save."""
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("tokens", min=2, max=64)}
    program = torch.export.export(SelfAttention(), (torch.randn(3, 11, 96, dtype=dtype),), dynamic_shapes=(dims,))
    torch.export.save(program, tmp_path / "model.pt2")
    options, bundle = Options(device="cuda"), tmp_path / "attention.fuseconv"
    done = convert(tmp_path / "model.pt2", target=("aoti", "torchscript"), options=options, tune="none", output=bundle)
    assert done.left_out == ()
    for target in ("aoti", "torchscript"):
        model = load(bundle, target)
        for batch, tokens in ((1, 2), (4, 13), (8, 64)):
            x = torch.randn(batch, tokens, 96, dtype=dtype)
            got = model(x.cuda())
            fp64, eager = SelfAttention()(x.double()), SelfAttention()(x)
            assert (got.cpu() - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(dtype).eps


class DenseLayers(nn.Module):
    """Convolutions without an activation, whose results are concatenated with what they were computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.squeezes = nn.ModuleList(nn.Conv2d(64 + 32 * i, 64, 1) for i in range(2))
        self.grows = nn.ModuleList(nn.Conv2d(64, 32, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for squeeze, grow in zip(self.squeezes, self.grows, strict=True):
            x = torch.cat([x, grow(torch.relu(squeeze(x)))], 1)
        return x


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_package_reads_a_plain_convolution_in_the_layout_in_which_it_is_returned(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model, x = DenseLayers().to(dtype), torch.randn(8, 3, 28, 28, dtype=dtype)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    output = tmp_path / "model.fuseconv"
    done = convert(tmp_path / "model.pt2", target=["aoti"], options=Options(device="cuda"), tune="none", output=output)
    assert not done.left_out
    assert not done.plan.rejected
    assert sum("conv2d-act" in step.rule for step in done.plan.steps) >= 3


class Upsampled(nn.Module):
    """Images [B, 8, 8 H, 8 W] through a group norm to twice their height and width, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(interpolate(silu(self.norm(x)), scale_factor=2.0)).mean(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_package_computes_images_whose_sizes_are_multiples(dtype: torch.dtype, tmp_path: Path) -> None:
    """Without a value of each symbol, torch 2.11 fails; with values that contradict each other, kernels do."""
    torch.manual_seed(0)
    model, batch = Upsampled().to(dtype), Dim("batch", min=1, max=4)
    height, width = (8 * Dim(name, min=2, max=8) for name in ("height", "width"))
    dims = {0: batch, 2: height, 3: width}
    program = torch.export.export(model, (torch.randn(3, 8, 40, 24, dtype=dtype),), dynamic_shapes=(dims,))
    torch.export.save(program, tmp_path / "model.pt2")
    output = tmp_path / "model.fuseconv"
    done = convert(tmp_path / "model.pt2", target=["aoti"], options=Options(device="cuda"), tune="none", output=output)
    assert not done.left_out
    package = load(output, "aoti")
    for sizes in ((1, 16, 16), (4, 64, 64), (2, 24, 56)):
        x = torch.randn(sizes[0], 8, *sizes[1:], dtype=dtype)
        with torch.no_grad():
            got, eager = package(x.cuda()).cpu().double(), deepcopy(model).cuda()(x.cuda()).cpu().double()
            fp64 = deepcopy(model).double()(x.double())
        assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(dtype).eps
