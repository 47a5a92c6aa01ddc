"""Fixtures that several files share: each expensive artifact is built once per session."""

from __future__ import annotations

import gc
import io
import logging
import operator
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import save_file
from support import ROOT, generating, heads, planted, saved_models, sleepy, small_bundle
from support.shared import made_once
from support.small_bundle import Block

from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.processes import forked
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import Rule
from fuseconv.runtime import cpp
from fuseconv.targets import TARGETS
from fuseconv.untrusted import permitted

pytest_plugins = ["support.gpu_marker", "support.graphs", "support.processor"]

ASKED_FOR = {
    "browser": "Chromium and fuseconv[browser]",
    "ray": "fuseconv[ray]",
    "tritonserver": "Triton Inference Server",
}
"""The folders of tests that are left out unless the marker of the same name is asked for, and what they need."""

PARTS = {
    "pages": "runs what a page, a sample or a benchmark shows",
    "compiles": "waits for a C++ compiler for several seconds, or uses the C++ runtime, which is compiled first",
    "fuzz": "tries random models, rules and files",
    "spellings": "fuses other spellings of what the examples of the rules show",
}
"""The markers of tests that a run of all folders leaves out because of their time. Each has a job of its own in CI."""

gc.disable()  # until all tests are collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write tests/golden/*.txt anew")
    parser.addoption(
        "--all",
        action="store_true",
        dest="everything",
        help="also the tests of pages, compilers and fuzzers, every row of the tests marked as diagonal, and every "
        "example of a rule in every dtype and every spelling",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, needed in ASKED_FOR.items():
        config.addinivalue_line("markers", f"{name}: needs {needed}; run with -m {name}")
    for name, does in PARTS.items():
        config.addinivalue_line(
            "markers", f"{name}: {does}; left out of a run of all folders without -m {name} or --all"
        )
    config.addinivalue_line(
        "markers", "cpp: does the same in Python and in C++; in Python alone if nothing is compiled"
    )
    config.addinivalue_line("markers", "long: takes ten seconds or more, and is begun first")
    config.addinivalue_line(
        "markers", "diagonal(n): of a product of parameters, the rows whose indices add to 0 modulo n"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out folders of tests that are not asked for: what they need is not in the environment of the others."""
    folder = collection_path.name if collection_path.parent == ROOT / "tests" else ""
    return True if folder in ASKED_FOR and folder not in config.option.markexpr else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what uses the C++ runtime: as of the part `compiles`, or as `cpp` if it also runs without it."""
    names = getattr(item, "fixturenames", ())
    if "cpp_program" in names:
        item.add_marker("compiles")
    elif "cpp_runtime" in names:
        item.add_marker("cpp")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `diagonal` and `PARTS` leave out, and begins long tests first, after all others were shuffled.

    A long test that is begun last keeps one processor waiting. A run of named files or folders leaves out no part.
    """
    if not config.option.everything:
        apart = left_out_parts(config)
        left_out = {
            item for item in items if is_off_the_diagonal(item) or any(item.get_closest_marker(name) for name in apart)
        }
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def left_out_parts(config: pytest.Config) -> set[str]:
    """Returns the names of the parts that a run leaves out: none if files, folders or `--all` are given."""
    if config.option.everything or config.args != config.getini("testpaths"):
        return set()
    return {name for name in PARTS if name not in config.option.markexpr}


def pytest_collection_finish() -> None:
    """Spares the garbage collector what was imported and collected, a million objects that live to the end."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Spares the garbage collector what is left: pytest calls it five times at the end, for errors in finalizers."""
    gc.collect()
    gc.collect()
    gc.freeze()


def is_off_the_diagonal(item: pytest.Item) -> bool:
    """Returns whether a test is one of those that a run without `--all` leaves out: see the marker `diagonal`.

    Two tables of parameters are independent of each other in most tests. On the diagonal each row of the longer one
    occurs, and each of the shorter one with an equal share of them.
    """
    marker = item.get_closest_marker("diagonal")
    if marker is None:
        return False
    return sum(row_of(item, table) for table in item.iter_markers("parametrize")) % int(marker.args[0]) != 0


def row_of(item: pytest.Item, table: pytest.Mark) -> int:
    """Returns the index of the row of a table of parameters that a test has."""
    names, rows = table.args[0], list(table.args[1])
    names = names.replace(",", " ").split() if isinstance(names, str) else names
    given = [item.callspec.params[name] for name in names]  # type: ignore[attr-defined]
    rows = [getattr(row, "values", (row,) if len(names) == 1 else row) for row in rows]
    return next(at for at, row in enumerate(rows) if all(map(operator.is_, row, given)))


@pytest.fixture(autouse=True)
def no_trust_from_before() -> Iterator[None]:
    """Whoever trusts code does so for a process; the next test begins without."""
    yield
    if permitted._trusted:
        permitted._trusted = False
        permitted.refusal.cache_clear()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of forks for a test that changes what torch reads when it is imported: that of other tests stays."""
    with monkeypatch.context() as patch:
        patch.setattr(forked, "SERVER", server := forked.Server())
        yield
        server.end()


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What fuseconv says in its log."""
    logger, said = logging.getLogger("fuseconv"), io.StringIO()
    handler, before = logging.StreamHandler(said), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield said
    logger.setLevel(before)
    logger.removeHandler(handler)


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activates the environment of this Python: a shell finds its `fuseconv` and `python`."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbids TF32 for PyTorch's convolutions."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="session")
def default_rules() -> tuple[Rule, ...]:
    return load_rules()


@pytest.fixture(scope="session")
def canonical_rules(default_rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that settle how things are spelled, without those that fuse."""
    return tuple(rule for rule in default_rules if rule.stage != "fuse")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> saved_models.Saved:
    """Saves each model of saved_models in each form once, all under the name model.pt; tests only read them."""
    paths = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for model_class in saved_models.INPUTS:
            for form, save in saved_models.SAVERS.items():
                path = tmp_path_factory.mktemp("saved") / "model.pt"
                save(saved_models.made(model_class), path)
                paths[model_class, form] = path
    return paths


@pytest.fixture(scope="session")
def original() -> Program:
    return small_bundle.program(Block(fused=False))


@pytest.fixture(scope="session")
def fused() -> Program:
    return small_bundle.program(Block(fused=True))


@pytest.fixture(scope="session")
def bundle(original: Program, fused: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all targets; tests only read it. Of several workers the first writes it, and the others find it."""

    def write(output: Path) -> None:
        scratch = tmp_path_factory.mktemp("scratch")
        small_bundle.write_bundle(original, fused, output, list(TARGETS), scratch=scratch)

    return made_once(tmp_path_factory, "block.fuseconv", write)


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of `planted` and its bundle, as `convert` writes it; tests only read it."""
    return made_once(tmp_path_factory, "converted", planted.write_converted)


@pytest.fixture(scope="session")
def generating_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `llama` of docs/generation.md, and its bundle `llama.fuseconv`, for two runtimes."""
    return made_once(tmp_path_factory, "generating", generating.write_page)


@pytest.fixture(scope="session")
def compiled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `generating_folder`, with the targets aoti and torchscript. Its tests are of the part `compiles`."""

    def write(folder: Path) -> None:
        generating.write_page(folder, ["aoti", "torchscript"])

    return made_once(tmp_path_factory, "compiled", write)


@pytest.fixture(scope="session")
def packages_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle before and after `fuseconv add` for a machine with fewer instructions."""
    return made_once(tmp_path_factory, "packages", heads.write_two_packages)


@pytest.fixture(scope="session")
def sleepy_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rule file of the pack whose op sleeps. A compiler takes two seconds for it: of several workers the first."""
    return made_once(tmp_path_factory, "sleepy_pack", sleepy.write_pack) / "rules.json"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Two threads that share a busy core differ by more than any rule."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bundle_copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(bundle, tmp_path / "copy.fuseconv"))


@pytest.fixture(scope="session")
def marking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A library that leaves a mark when it is loaded, and the path of the mark."""
    folder = tmp_path_factory.mktemp("marking")
    library, mark = folder / "marking.so", folder / "loaded"
    code = f'#include <stdio.h>\n__attribute__((constructor)) static void f(void) {{ fclose(fopen("{mark}", "w")); }}\n'
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=code, text=True, check=True)
    return library, mark


@pytest.fixture
def loaded(bundle_copy: Path, marking: tuple[Path, Path]) -> Callable[[], bool]:
    """Puts a library in place of each of a bundle's that leaves a mark when it is loaded; returns who asks for it."""
    marks, mark = marking
    mark.unlink(missing_ok=True)
    manifest = open_bundle(bundle_copy)
    for library in (bundle_copy / "lib").iterdir():
        shutil.copy(marks, library)
    seal(bundle_copy, manifest)
    return mark.exists


@pytest.fixture(scope="session")
def cpp_program() -> Path:
    """The program that `cpp.build` compiles, with its library beside it. Both are kept: they take a compiler a minute.

    Of several workers the first builds, and the others find it done.
    """
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, FileLock(build / "cache.lock"):
        patch.setenv("XDG_CACHE_HOME", str(build / "cache"))
        # Of ONNX Runtime's header the build of the plugin has a copy, unpacked beside its objects.
        if unpacked := sorted(build.glob("*/onnxruntime/usr/include/onnxruntime")):
            patch.setenv(
                "FUSECONV_ONNXRUNTIME_INCLUDE", os.environ.get("FUSECONV_ONNXRUNTIME_INCLUDE", str(unpacked[0]))
            )
        return cpp.build()


@pytest.fixture(scope="session")
def programs(cpp_program: Path) -> Path:
    """The folder of the C++ sample, built as its page says, with fuseconv-run beside it. What is built is kept."""
    build = ROOT / "build" / "cpp"
    build_with_cmake(ROOT / "samples" / "04_cpp", build, cpp_program, "embed", "generate", "fuseconv-run")
    return build


@pytest.fixture(scope="session")
def methods_program(cpp_program: Path) -> Path:
    """The program of tests/cpp/methods.cpp. What is built is kept."""
    build = ROOT / "build" / "cpp_tests"
    build_with_cmake(ROOT / "tests" / "cpp", build, cpp_program, "methods")
    return build / "methods"


@pytest.fixture(scope="session")
def advance_program(cpp_program: Path) -> Path:
    """The program of tests/cpp/advance.cpp. What is built is kept."""
    build = ROOT / "build" / "cpp_tests"
    build_with_cmake(ROOT / "tests" / "cpp", build, cpp_program, "advance")
    return build / "advance"


def build_with_cmake(sources: Path, build: Path, program: Path, *targets: str) -> None:
    """Builds programs against the library of the C++ runtime that lies beside `program`."""
    settings = {
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path,
        "fuseconv_DIR": ROOT / "csrc" / "runtime",
        "FUSECONV_LIBRARY": program.with_name(cpp.LIBRARY),
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    with FileLock(f"{build}.lock"):
        for command in (
            ["cmake", "-S", f"{sources}", "-B", f"{build}", "-G", "Ninja", *defined],
            ["cmake", "--build", f"{build}", "--target", *targets],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def cpp_runtime(request: pytest.FixtureRequest) -> Callable[..., tuple[int, str, Path]] | None:
    """`run_in_cpp` for tests that also say something without it. None in a run that leaves out what is compiled."""
    left_out = "compiles" in left_out_parts(request.config)
    return None if left_out else request.getfixturevalue("run_in_cpp")


@pytest.fixture
def run_in_cpp(programs: Path, tmp_path: Path) -> Callable[..., tuple[int, str, Path]]:
    """Runs fuseconv-run; returns its exit status, what it says, and where its outputs are."""

    def run(
        bundle: Path, tensors: Mapping[str, torch.Tensor], *words: str, cwd: Path | None = None, **environment: str
    ) -> tuple[int, str, Path]:
        inputs, output = tmp_path / "inputs.safetensors", tmp_path / "outputs.safetensors"
        save_file({name: value.contiguous() for name, value in tensors.items()}, inputs)
        done = subprocess.run(
            [programs / "fuseconv-run", bundle, "--inputs", inputs, "-o", output, *words],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, **cpp.libraries("cpu"), **environment},
        )
        return done.returncode, done.stderr, output

    return run
