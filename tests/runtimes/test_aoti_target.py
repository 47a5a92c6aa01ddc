"""AOTInductor as a target: its compiler, its processes, its cache."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs, small_bundle
from torch import Tensor, nn
from torch._inductor import lowering
from torch.nn import functional
from torchgen.aoti.fallback_ops import inductor_fallback_ops  # type: ignore[import-untyped]

from fuseconv.errors import UpstreamError
from fuseconv.processes.forked import Forked, forked
from fuseconv.program.captured import Program
from fuseconv.targets import TARGETS, Context, aoti, aoti_compile
from fuseconv.targets.size_hints import set_size_hints, widen_short_ranges

X = "x=f32[batch:1..16,seq:3..32,8]"


class AddOne(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x + 1,)


class RoundsUp(nn.Module):
    """Pools whose `ceil_mode` changes nothing at the sizes for which the package is optimized."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        twice = functional.max_pool2d(functional.max_pool2d(x + 1, 2, ceil_mode=True), 2, ceil_mode=True)
        return (
            functional.max_pool2d(x, 3, 2, ceil_mode=True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.max_pool2d(x, 3, 2, padding=1, dilation=2, ceil_mode=True),
            twice,
        )


@pytest.mark.compiles
def test_pools_round_up_at_all_sizes(tmp_path: Path) -> None:
    module = RoundsUp()
    program = small_bundle.program(module, ("x=f32[1,2,height:8..41,width:9..40]",))
    model = TARGETS["aoti"].load(tmp_path / TARGETS["aoti"].write(program, tmp_path, Context(tmp_path)), "cpu")
    for height, width in itertools.product((8, 9, 10, 11, 41), (9, 10, 12, 40)):
        x = torch.randn(1, 2, height, width)
        torch.testing.assert_close(model(x), module(x))


class Experts(nn.Module):
    """Rows are multiplied by the weight of their expert. The second input has the end of each expert's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16, 24))

    def forward(self, x: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
        return (torch._grouped_mm(x + 1, self.weight, ends),)


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # torch copies its own
def test_grouped_products_need_no_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has the shim since 2.12. Here the package is compiled in this process, as if torch had none."""
    monkeypatch.delitem(inductor_fallback_ops, "aten._grouped_mm.default", raising=False)
    for op in (torch.ops.aten._grouped_mm.default, torch.ops.aten._scaled_grouped_mm.default):
        monkeypatch.setitem(lowering.lowerings, op, lowering.lowerings[op])
    monkeypatch.setattr(lowering, "pooling_size", lowering.pooling_size)
    module = Experts().bfloat16().eval()
    x, ends = torch.randn(40, 16).bfloat16(), torch.tensor([8, 16, 40], dtype=torch.int32)
    torch.export.save(programs.program(module, (x, ends)).exported, tmp_path / "source.pt2")
    package = tmp_path / "package.pt2"
    aoti_compile.main(str(tmp_path / "source.pt2"), str(package), "cpu", "")
    torch.testing.assert_close(TARGETS["aoti"].load(package, "cpu")(x, ends), module(x, ends))
    with zipfile.ZipFile(package) as files:
        (source,) = (files.read(name).decode() for name in files.namelist() if name.endswith(".wrapper.cpp"))
    assert "aoti_torch_cpu__grouped_mm(" not in source


@pytest.mark.usefixtures("own_server")
def test_a_failing_compiler_leaves_the_parent_alive_and_its_log_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    program = small_bundle.program(AddOne(), (X,))
    with pytest.raises(UpstreamError, match="AOTInductor failed") as caught:
        TARGETS["aoti"].write(program, tmp_path, Context(tmp_path))
    assert caught.value.exit_status == 5
    assert "/bin/false" in caught.value.what


def test_an_interrupted_compilation_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def interrupt() -> None:
        seen.extend(processes_in(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)

    def start(*args: str, **kwargs: Any) -> Forked:
        process = forked(*args, **kwargs)
        timer.start()
        return process

    monkeypatch.setattr(aoti, "forked", start)
    program = small_bundle.program(AddOne(), (X,))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    timer = threading.Timer(0.5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        TARGETS["aoti"].write(program, tmp_path, Context(tmp_path))
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert seen
    end = time.monotonic() + 60
    while processes_in(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.05)


def processes_in(folder: Path) -> list[Path]:
    """Returns the processes whose working directory is a folder; the compiler and all that it starts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "cwd").readlink() == folder:
                found.append(process)
    return found


@pytest.mark.parametrize(("cxx", "is_replaced"), [("", False), ("g++ -O0", False), ("g++ -static-libstdc++", True)])
def test_a_compiler_that_links_its_own_standard_library_is_replaced(
    cxx: str, is_replaced: bool, tmp_path: Path
) -> None:
    chosen = aoti.compilers({"CXX": cxx}, tmp_path)
    assert chosen == ({"CXX": "/usr/bin/g++", "CC": "/usr/bin/gcc"} if is_replaced else {})


def test_a_package_from_a_damaged_cache_is_refused(bundle: Path, tmp_path: Path) -> None:
    """A killed compiler leaves empty files in its cache; the next one packs them."""
    whole, damaged = bundle / "aoti" / "model.pt2", tmp_path / "model.pt2"
    aoti.check_complete(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"" if name.endswith("wrapper.so") else source.read(name))
    with pytest.raises(UpstreamError, match=r"wrapper\.so: AOTInductor's cache is damaged") as caught:
        aoti.check_complete(damaged)
    assert "delete " in (caught.value.fix or "")


def test_a_missing_compiler_is_said_before_compiling(fused: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert "/nowhere/c++" in (TARGETS["aoti"].unsupported(fused) or "")


@pytest.mark.parametrize(
    ("log", "first", "lines"),
    [
        (["a.b.InductorError: LoweringException: it cannot", *"x" * 30], "a.b.InductorError: LoweringException:", 21),
        (["ValueError: an earlier one", *"x" * 30, "TypeError: the last"], "x", 20),
        ([*"x" * 30], "x", 20),
        (["OSError: short", "x"], "OSError: short", 2),
    ],
)
def test_the_end_of_a_log_has_its_last_message(log: list[str], first: str, lines: int) -> None:
    end = aoti.end_of("\n".join(log)).splitlines()
    assert end[0].startswith(first)
    assert len(end) == lines
    assert end[-1] == log[-1]


def test_inductor_does_not_analyze_the_tiling_of_dynamic_shapes() -> None:
    batch = torch.export.Dim("batch", max=8)
    static, dynamic = (
        torch.export.export(AddOne(), (torch.ones(4, 3),), dynamic_shapes=shapes) for shapes in (None, ({0: batch},))
    )
    assert aoti_compile.tiling(static) == {}
    assert set(aoti_compile.tiling(dynamic).values()) == {False}


class Doubled(nn.Module):
    """Doubles the size of images [4 B, C, 8 H, 8 W], and adds up four at a time."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, scale_factor=2.0).unflatten(0, (-1, 4)).sum(1)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")  # torch warns of its own use
@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("batch:4..256:4,1,height:8..72:8,width:2..9", (33, 5, 6)),  # 5 is taken
        ("batch:4..16384:4,1,height:16..24:8,width:7..7000", (64, 2, 128)),  # 513, 2 and 515, halved
        ("batch:104..16384:4,1,height:208..4000:8,width:26..300", (26, 27, 28)),
    ],
)
def test_the_symbols_of_a_program_have_values_in_the_middle_of_their_ranges(
    shape: str, values: Sequence[int], tmp_path: Path
) -> None:
    """torch.export.load gives a symbol no value if it is only found in multiples, such as `8*s`."""
    program = small_bundle.program(Doubled(), (f"x=f32[{shape}]",))
    torch.export.save(program.exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    set_size_hints(loaded)
    decomposed = loaded.run_decompositions({})
    (x,) = (node.meta["val"] for node in decomposed.graph.find_nodes(op="placeholder"))
    y = decomposed.graph.output_node().args[0][0].meta["val"]
    hints = x.shape[0].node.shape_env.backed_var_to_val
    assert [hints[next(iter(x.shape[axis].node.expr.free_symbols))] for axis in (0, 2, 3)] == list(values)
    assert [size.node.hint for size in x.shape[2:]] == [8 * values[1], values[2]]
    assert [size.node.hint for size in y.shape[2:]] == [16 * values[1], 2 * values[2]]


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")  # torch warns of its own use
@pytest.mark.parametrize("least", [0, 1])
def test_a_batch_of_at_most_two_is_no_constant_behind_a_convolution(least: int, tmp_path: Path) -> None:
    program = small_bundle.program(nn.Conv2d(1, 4, 3), (f"x=f32[batch:{least}..2,1,8,8]",))
    torch.export.save(program.exported, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    widen_short_ranges(loaded)
    with aoti_compile.unchanged_backends():
        (returned,) = loaded.run_decompositions({}).graph.output_node().args[0]
    assert isinstance(returned.meta["val"].shape[0], torch.SymInt)


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")  # torch warns of its own use
def test_fake_convolutions_have_the_strides_of_real_ones() -> None:
    """Inductor reuses the fake results of the decomposition."""
    module = nn.Conv3d(8, 8, 3).eval()
    x = torch.ones(2, 8, 6, 7, 5).to(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        exported, real = torch.export.export(module, (x,)), module(x)
    with aoti_compile.unchanged_backends():
        decomposed = exported.run_decompositions({})
    (returned,) = decomposed.graph.output_node().args[0]
    assert returned.meta["val"].stride() == real.stride() == (480, 1, 120, 24, 8)
    assert not any("set_flags" in vars(backend) for backend in (torch.backends.mkldnn, torch.backends.cudnn))
