"""The CUDA backends of linear_act through their plain C interface, against f64.

They need a Hopper GPU and the library that `cmake --build <folder> --target fuseconv_linear` builds, named by the
environment variable FUSECONV_LINEAR_LIBRARY.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.roundings import rounded_twice
from torch import Tensor
from torch.nn import functional as F

from fuseconv.runtime import tactics

sys.path.insert(0, str(ROOT / "bench"))
from linear_library import ACTIVATIONS, BACKENDS, PROPOSALS, Choice, Library, draw, error

LIBRARY = os.environ.get("FUSECONV_LINEAR_LIBRARY")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(LIBRARY is None, reason="FUSECONV_LINEAR_LIBRARY names no library")]

SHAPES = 7  # of tiles, as sm90.h lists them
PLACES = [(1, 1, 8), (2, 1, 8), (1, 2, 3)]  # cluster rows, cluster columns, strip
PROBLEMS = [  # m, n, k, activation, bias, form
    (1, 8, 8, "none", True, "plain"),
    (200, 320, 136, "none", False, "plain"),
    (200, 320, 136, "gelu", True, "residual"),
    (129, 5632, 320, "gelu_tanh", True, "residual"),
    (300, 256, 64, "relu", True, "residual first"),
    (1000, 1544, 776, "silu", False, "residual first"),
    (513, 1000, 64, "hard_swish", True, "residual first"),
    (1000, 1544, 776, "silu", True, "plain"),
    (3000, 2056, 1096, "sigmoid", False, "residual"),
    (4096, 3072, 768, "relu", True, "plain"),
    (513, 1000, 64, "tanh", True, "plain"),
    (1, 8, 8, "silu", True, "gated"),
    (200, 168, 136, "gelu", True, "gated"),
    (129, 2824, 320, "gelu_tanh", False, "gated"),
    (1000, 776, 776, "silu", True, "gated"),
    (3000, 1032, 1096, "sigmoid", True, "gated"),
    (4096, 1536, 768, "relu", False, "gated"),
    (513, 504, 64, "tanh", True, "gated"),
    (513, 1000, 64, "hard_swish", True, "plain"),
    (513, 1000, 64, "relu_squared", True, "plain"),
    (1000, 1544, 776, "relu6", False, "residual"),
    (513, 504, 64, "hard_sigmoid", True, "gated"),
    (300, 96, 64, "none", True, "gated"),
]
UNALIGNED_PROBLEMS = [  # rows of y, and of the residual, do not start at multiples of 16 bytes
    (200, 91, 136, "gelu", True, "plain"),
    (129, 2, 320, "none", True, "plain"),
    (70, 1, 64, "relu", False, "plain"),
    (1000, 1541, 776, "silu", True, "plain"),
    (513, 1196, 64, "hard_swish", True, "plain"),
    (300, 94, 64, "silu", True, "gated"),
    (1, 4, 8, "none", False, "gated"),
]
SM90_PROBLEMS = [row for row in (*PROBLEMS, *UNALIGNED_PROBLEMS) if row[3] != "tanh"]
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
ABSOLUTE = {torch.bfloat16: 2e-3, torch.float16: 5e-4}
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10}

Row = tuple[int, int, int, str, bool, str]
Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""x, weight, bias and residual."""


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(Path(os.environ["FUSECONV_LINEAR_LIBRARY"]))


def meaning(
    x: Tensor, weight: Tensor, bias: Tensor | None, act: str, residual: Tensor | None = None, form: str = "plain"
) -> Tensor:
    z = F.linear(x, weight, bias)
    if form == "gated":
        gate, up = z.chunk(2, -1)
        return ACTIVATIONS[act](gate) * up
    if form == "residual first":
        assert residual is not None
        return ACTIVATIONS[act](z + residual)
    return ACTIVATIONS[act](z) if residual is None else ACTIVATIONS[act](z) + residual


def wide(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Operands:
    return (
        x.double(),
        weight.double(),
        bias if bias is None else bias.double(),
        residual if residual is None else residual.double(),
    )


def operands(m: int, n: int, k: int, dtype: torch.dtype, *, bias: bool = True, form: str = "plain") -> Operands:
    x, weight, b = draw(m, 2 * n if form == "gated" else n, k, dtype)
    r = torch.randn(m, n, device="cuda").to(dtype) if form.startswith("residual") else None
    return x, weight, b if bias else None, r


def assert_as_right_as_separate_kernels_and_writes_only_y(
    library: Library, choices: Iterable[Choice], dtype: torch.dtype, problems: Iterable[Row]
) -> None:
    """Every problem by every choice, in turn, into the same framed y."""
    for m, n, k, act, bias, form in problems:
        x, weight, b, r = operands(m, n, k, dtype, bias=bias, form=form)
        xd, wd, bd, rd = wide(x, weight, b, r)
        reference = meaning(xd, wd, bd, act, rd, form=form)
        frame = torch.full((m + 2, n + 16), float("nan"), dtype=dtype, device="cuda")
        y = frame[1:-1, 8:-8]
        for choice in choices:
            problem, _ = library.problem(x, weight, b, act, r, y, form=form)
            library.run(problem, choice)
        separate = error(meaning(x, weight, b, act, r, form=form), reference)
        assert error(y, reference) <= 1.005 * separate, (m, n, k, act, form)
        torch.testing.assert_close(y.double(), reference, atol=ABSOLUTE[dtype], rtol=RELATIVE[dtype])
        y.fill_(float("nan"))
        assert frame.isnan().all(), "written outside y"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", range(SHAPES))
def test_sm90(library: Library, shape: int, place: tuple[int, ...], dtype: torch.dtype) -> None:
    variants = [library.library.fuseconv_linear_sm90_variant(shape, *place, early) for early in (0, 1)]
    choices = [Choice(BACKENDS.index("sm90"), variant) for variant in variants]
    assert_as_right_as_separate_kernels_and_writes_only_y(library, choices, dtype, SM90_PROBLEMS)


def test_sm90_refuses_an_activation_that_it_has_no_kernel_for(library: Library) -> None:
    problem, _ = library.problem(*draw(64, 64, 64, torch.bfloat16), "tanh")
    with pytest.raises(RuntimeError, match="it has no kernel with this activation"):
        library.run(problem, Choice(BACKENDS.index("sm90"), 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", range(3))
def test_sm80(library: Library, shape: int, dtype: torch.dtype) -> None:
    choices = [Choice(BACKENDS.index("sm80"), shape)]
    assert_as_right_as_separate_kernels_and_writes_only_y(library, choices, dtype, PROBLEMS)


def f32_operands(m: int, n: int, k: int, *, positive: bool = False, gated: bool = False) -> tuple[Tensor, Tensor]:
    x, weight, _ = draw(m, n * 2 if gated else n, k, torch.float32)
    return (x.abs(), weight.abs()) if positive else (x, weight)


F32_PROBLEMS = [
    *[row for row in PROBLEMS if row[2] >= 64],
    (70, 31, 68, "none", True, "plain"),
    (65, 131, 100, "gelu", True, "residual"),
]


def f32_bound(eager: float) -> float:
    """docs/numerics.md: the factor of float32, and its floor."""
    return 2 * eager + torch.finfo(torch.float32).eps


@pytest.mark.parametrize("shape", range(3))
def test_tf32x3_is_as_exact_as_f32(library: Library, shape: int) -> None:
    """The error of each problem, of ours and of torch's, and nothing outside y."""
    choice = Choice(BACKENDS.index("tf32x3"), shape)
    for m, n, k, act, bias, form in F32_PROBLEMS:
        x, weight, b, r = operands(m, n, k, torch.float32, bias=bias, form=form)
        xd, wd, bd, rd = wide(x, weight, b, r)
        reference = meaning(xd, wd, bd, act, rd, form=form)
        frame = torch.full((m + 2, n + 16), float("nan"), device="cuda")
        y = frame[1:-1, 8:-8]
        library.run(library.problem(x, weight, b, act, r, y, form=form)[0], choice)
        eager = error(meaning(x, weight, b, act, r, form=form), reference)
        assert error(y, reference) <= f32_bound(eager), (m, n, k, act, form)
        y.fill_(float("nan"))
        assert frame.isnan().all(), "written outside y"


@pytest.mark.parametrize("positive", [False, True], ids=["signs", "positive"])
@pytest.mark.parametrize("k", [64, 200, 1096, 4096])
def test_tf32x3_does_not_lean_to_a_side(library: Library, k: int, positive: bool) -> None:
    """The tensor cores truncate, and the errors of sums of one sign would add up."""
    x, weight = f32_operands(300, 200, k, positive=positive)
    reference = x.double() @ weight.double().T
    eager = error(x @ weight.T, reference)
    for shape in range(3):
        problem, y = library.problem(x, weight, None, "none")
        library.run(problem, Choice(BACKENDS.index("tf32x3"), shape))
        assert error(y, reference) <= f32_bound(eager), shape
        assert abs(((y - reference).mean() / reference.abs().mean()).item()) < torch.finfo(torch.float32).eps, shape


@pytest.mark.parametrize(("scale", "bound"), [(1e30, None), (1e-30, None), (1e-36, 2e-5)])
def test_tf32x3_of_very_small_and_very_large_factors(library: Library, scale: float, bound: float | None) -> None:
    """What a factor has below 2^-136, the least number of TF32, is lost."""
    x, weight = f32_operands(130, 70, 128)
    x *= scale
    reference = x.double() @ weight.double().T
    eager = error(x @ weight.T, reference)
    for shape in range(3):
        problem, y = library.problem(x, weight, None, "none")
        library.run(problem, Choice(BACKENDS.index("tf32x3"), shape))
        assert error(y, reference) <= (bound or f32_bound(eager)), shape


@pytest.mark.parametrize("form", ["plain", "gated"])
def test_tf32x3_gives_infinity_and_nan_where_f32_does(library: Library, form: str) -> None:
    """An infinity has no second part: inf - inf, and 0 times inf, must not make NaN of it."""
    x, weight = f32_operands(140, 70, 128, gated=form == "gated")
    weight[:, 3], weight[:, 0] = 1.0, 1.5  # of one part
    x[3, 3], x[5, 6], x[11, 1], x[20, 0] = float("inf"), float("nan"), -float("inf"), 3.4028e38
    x[:, 7] = 1.0
    weight[9, 7], weight[17, 7] = -float("inf"), float("nan")
    nan = torch.tensor([0x7F800001, -1], dtype=torch.int32, device="cuda").view(torch.float32)
    x[30, 2], x[31, 2] = nan[0], nan[1]  # whose upper bits are those of an infinity, and all
    expected = meaning(x, weight, None, "none", form=form)
    for shape in range(3):
        problem, y = library.problem(x, weight, None, "none", form=form)
        library.run(problem, Choice(BACKENDS.index("tf32x3"), shape))
        torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_tf32x3_one_after_another_in_a_graph(library: Library) -> None:
    """Each may start before the one before it has ended, and reads its result."""
    x, weight = f32_operands(500, 256, 256)
    y, z = torch.empty_like(x), torch.empty_like(x)
    choice = Choice(BACKENDS.index("tf32x3"), 1)

    def chain() -> Tensor:
        for source, target in ((x, y), (y, z), (z, y), (y, z)):
            library.run(library.problem(source, weight, None, "gelu", y=target)[0], choice)
        return z

    expected = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(20):
        z.zero_()
        graph.replay()
        assert torch.equal(z, expected)


def test_tf32x3_leaves_short_sums_and_tf32_to_others(library: Library) -> None:
    for k, tf32, reason in ((60, 0, "fewer than 64 products"), (64, 1, "where TF32 is not allowed")):
        x, weight = f32_operands(16, 16, k)
        problem, _ = library.problem(x, weight, None, "none")
        problem.tf32 = tf32
        with pytest.raises(RuntimeError, match=reason):
            library.run(problem, Choice(BACKENDS.index("tf32x3"), 0))


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("view", ["contiguous", "strided", "unaligned"])
def test_the_chosen_backend_and_two_kernels_are_right(
    library: Library, act: str, dtype: torch.dtype, view: str
) -> None:
    x, weight, b, r = operands(1536, 128, 64, dtype, form="residual")
    assert b is not None
    assert r is not None
    if view == "strided":
        x, weight, r = (torch.nn.functional.pad(t, (0, 8))[:, : t.shape[1]] for t in (x, weight, r))
    if view == "unaligned":
        x, weight, b, r = (torch.nn.functional.pad(t, (1, 0))[..., 1:] for t in (x, weight, b, r))
    for form, residual in (("plain", None), ("residual", r), ("residual first", r), ("gated", None)):
        xd, wd, bd, rd = wide(x, weight, b, residual)
        reference = meaning(xd, wd, bd, act, rd, form=form)
        scratch = torch.full((1536, 128), float("nan"), dtype=dtype, device="cuda")
        problem, y = library.problem(x, weight, b, act, residual, scratch=scratch, form=form)
        # Sums in f32 and f64 differ by their order alone; in 16 bits roundings are all there is: ours has one, or two
        # as eager has, but not always at the same places. The mean of 1536 x 128 of them is within 1 %.
        eager = error(meaning(x, weight, b, act, residual, form=form), reference)
        if dtype.itemsize == 2:
            twice = rounded_twice(xd, wd, bd, None if act == "none" else ACTIVATIONS[act], rd, form, dtype)
            bound = 1.01 * max(eager, *(error(result, reference) for result in twice))
        else:
            bound = 2 * eager + torch.finfo(dtype).eps * (2 if form == "gated" else 1)  # of two sums, a product
        for choice in (library.choose(problem), Choice(BACKENDS.index("cublas"), 0)):
            y.fill_(float("nan"))
            library.run(problem, choice)
            assert error(y, reference) <= bound, (form, library.describe(choice))


def test_a_gated_layer_in_two_kernels_says_that_it_needs_scratch(library: Library) -> None:
    problem, _ = library.problem(*draw(16, 64, 32, torch.float32), "silu", form="gated")
    with pytest.raises(RuntimeError, match="a gated layer in two kernels needs scratch memory"):
        library.run(problem, Choice(BACKENDS.index("cublas"), 0))


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_infinity_and_nan_come_out_as_torch_gives_them(library: Library, act: str, dtype: torch.dtype) -> None:
    special = torch.tensor([0, 1, -1, 30, -30, 6e4, -6e4, float("inf"), -float("inf"), float("nan")] * 8)
    bias = special.to("cuda", dtype)
    x, weight = torch.zeros(64, 64, device="cuda", dtype=dtype), torch.zeros(80, 64, device="cuda", dtype=dtype)
    problem, y = library.problem(x, weight, bias, act)
    library.run(problem, library.choose(problem))
    expected = ACTIVATIONS[act](bias).expand(64, 80)
    torch.testing.assert_close(y, expected, equal_nan=True, atol=1e-3, rtol=RELATIVE.get(dtype, 1e-5))


def test_a_capture_is_never_timed_and_replays(library: Library) -> None:
    x, weight, b = draw(40, 64, 72, torch.bfloat16)  # a size no other test has timed
    problem, y = library.problem(x, weight, b, "gelu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.run(problem, library.choose(problem))
    y.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(y, meaning(x, weight, b, "gelu"), atol=1e-2, rtol=1e-2)


def test_choices_are_kept_in_a_file(library: Library, tmp_path: Path) -> None:
    problem, _ = library.problem(*draw(48, 64, 72, torch.bfloat16), "silu")
    choice = library.choose(problem)
    path, message = tmp_path / "tuning.json", library.message
    assert library.library.fuseconv_linear_save_choices(str(path).encode(), message, 4096) == 0
    (family,) = (name for name in tactics.read(path) if name.endswith("linear bf16 silu n 64 k 72 bias"))
    times = tactics.read(path)[family]["48"]
    fastest = min(times, key=lambda name: times[name]["us"])
    assert fastest.startswith(f"{BACKENDS[choice.backend]} ")
    assert library.library.fuseconv_linear_load_choices(str(path).encode(), message, 4096) == 0
    path.write_text("{}")
    assert library.library.fuseconv_linear_load_choices(str(path).encode(), message, 4096) == -1
    assert b"is not valid" in message.value


def test_a_size_between_measured_ones_takes_one_of_their_tactics(library: Library, tmp_path: Path) -> None:
    """Nothing is timed: the choice follows the tactics of a file, also one that a size near it would not take."""
    measured = [library.problem(*draw(m, 64, 72, torch.bfloat16), "sigmoid")[0] for m in (64, 256)]
    for problem in measured:
        library.choose(problem)
    path = tmp_path / "tuning.json"
    assert library.library.fuseconv_linear_save_choices(str(path).encode(), library.message, 4096) == 0
    (family,) = (name for name in tactics.read(path) if name.endswith("linear bf16 sigmoid n 64 k 72 bias"))
    sizes = tactics.read(path)[family]
    (slowest, *_) = sorted(sizes["64"].keys() & sizes["256"].keys(), key=lambda name: -sizes["64"][name]["us"])
    for times in sizes.values():
        times[slowest] = {"us": 0.001, "noise": 0.0}
    tactics.write(path, {family: sizes})
    assert library.library.fuseconv_linear_load_choices(str(path).encode(), library.message, 4096) == 0
    between, _ = library.problem(*draw(100, 64, 72, torch.bfloat16), "sigmoid")
    assert slowest.startswith(BACKENDS[library.choose(between, may_time=False).backend])


@pytest.mark.parametrize(("act", "form"), [("none", "plain"), ("relu", "plain"), ("gelu", "gated")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_algorithm_measured_at_one_size_computes_the_others(
    library: Library, tmp_path: Path, dtype: torch.dtype, act: str, form: str
) -> None:
    """Each algorithm of cuBLAS among the tactics of two sizes, at sizes below, between and above them."""
    n, k, path = 320, 1032, tmp_path / "tuning.json"
    for m in (64, 1000):
        x, weight, b, _ = operands(m, n, k, dtype, form=form)
        scratch = torch.empty(m, 2 * n, dtype=dtype, device="cuda")
        library.choose(library.problem(x, weight, b, act, scratch=scratch, form=form)[0])
    assert library.library.fuseconv_linear_save_choices(str(path).encode(), library.message, 4096) == 0
    problem_is = f"; linear {NAMES[dtype]} {act} n {n} k {k}{' gated' if form == 'gated' else ''} bias"
    ((family, sizes),) = ((name, known) for name, known in tactics.read(path).items() if name.endswith(problem_is))
    names = {name for known in sizes.values() for name in known if name.startswith("cublas")}
    taken = 0
    for name in names:
        only = {size: {name: known[name]} for size, known in sizes.items() if name in known}
        tactics.write(path, {family: only})
        assert library.library.fuseconv_linear_load_choices(str(path).encode(), library.message, 4096) == 0
        for m in (1, 7, 65, 200, 513, 999, 1001, 5000):
            x, weight, b, _ = operands(m, n, k, dtype, form=form)
            xd, wd, bd, _ = wide(x, weight, b, None)
            reference = meaning(xd, wd, bd, act, form=form)
            scratch = torch.full((m, 2 * n), float("nan"), dtype=dtype, device="cuda")
            problem, y = library.problem(x, weight, b, act, scratch=scratch, form=form)
            y.fill_(float("nan"))
            choice = library.choose(problem, may_time=False)
            taken += BACKENDS[choice.backend].startswith("cublas") and choice.variant >= PROPOSALS
            library.run(problem, choice)
            eager = error(meaning(x, weight, b, act, form=form), reference)
            sums = 2 * eager + torch.finfo(dtype).eps * (2 if form == "gated" else 1)  # of two sums, a product
            assert error(y, reference) <= (sums if dtype == torch.float32 else 1.1 * eager), (name, m)
    assert taken >= len(names), "few algorithms of a measured size were taken at others"


def test_what_no_backend_takes_says_why(library: Library) -> None:
    x, weight, b = draw(8, 8, 8, torch.float32)
    problem, _ = library.problem(x, weight, b, "none")
    problem.m = 0
    with pytest.raises(RuntimeError, match="no CUDA backend takes this problem: cublaslt: a size is 0"):
        library.choose(problem)
