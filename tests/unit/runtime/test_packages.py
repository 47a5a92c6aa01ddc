"""Which package of a target a machine runs: that of its GPU's architecture, or that with the most instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.packages import Package, package_path
from fuseconv.runtime.environment import architecture_problems
from fuseconv.runtime.packages import fitting, why_none

HERE = Environment(
    python="3.11.7",
    platform="Linux",
    machine="x86_64",
    cpu="AVX512",
    torch="2.13.0",
    onnx="1.23.2",
    onnxruntime=None,
    cuda=None,
    gpu=None,
)


def machine(**fields: str | None) -> Environment:
    return HERE.model_copy(update=fields)


def packages(*machines: Environment) -> list[Package]:
    return [
        Package(target="aoti", path=f"aoti-{at}/model.pt2", environment=made, parity=[])
        for at, made in enumerate(machines)
    ]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (machine(), "x86_64-avx512"),
        (machine(cpu="AVX2"), "x86_64-avx2"),
        (machine(cpu="NO AVX"), "x86_64-noavx"),
        (machine(machine="aarch64", cpu="SVE256"), "aarch64-sve256"),
        (machine(gpu="9.0"), "sm_90"),
        (machine(gpu="12.0"), "sm_120"),
    ],
)
def test_an_architecture_is_named_by_the_gpu_or_by_the_instructions_of_the_cpu(made: Environment, name: str) -> None:
    assert made.architecture == name
    assert package_path(Path("aoti/model.pt2"), name) == Path(f"aoti-{name}/model.pt2")


SM_80, SM_90, SM_100 = (machine(gpu=gpu) for gpu in ("8.0", "9.0", "10.0"))
AVX512, AVX2, DEFAULT = (machine(cpu=cpu) for cpu in ("AVX512", "AVX2", "DEFAULT"))


@pytest.mark.parametrize(
    ("made", "here", "chosen"),
    [
        ([SM_80, SM_90], SM_80, 0),
        ([SM_80, SM_90], SM_90, 1),
        ([SM_80], machine(gpu="8.6"), None),  # no package contains PTX
        ([SM_80, SM_90], SM_100, None),
        ([SM_90], machine(gpu="9.0", cpu="AVX2"), None),  # the host code is compiled for the CPU
        ([SM_90, machine(gpu="9.0", cpu="AVX2")], machine(gpu="9.0", cpu="AVX2"), 1),
        ([SM_90], HERE, None),
        ([AVX512], SM_90, None),
        ([AVX512, AVX2], AVX512, 0),
        ([AVX2, AVX512], AVX512, 1),
        ([AVX512, AVX2], AVX2, 1),
        ([AVX512, AVX2], DEFAULT, None),
        ([DEFAULT, AVX2], AVX512, 1),
        ([AVX512, AVX512], AVX512, 0),
        ([machine(torch="2.14.0"), AVX512], AVX512, 1),
        ([machine(torch="2.14.0"), AVX2], AVX512, 1),
        ([machine(torch="2.14.0")], AVX512, None),
        ([AVX512, machine(machine="aarch64", cpu="DEFAULT")], machine(machine="aarch64", cpu="DEFAULT"), 1),
        ([AVX512], machine(machine="aarch64", cpu="DEFAULT"), None),
    ],
)
def test_a_machine_runs_the_package_that_was_compiled_for_it(
    made: list[Environment], here: Environment, chosen: int | None
) -> None:
    each = packages(*made)
    assert fitting(each, here) is (None if chosen is None else each[chosen])
    assert fitting(list(reversed(each)), here) is (each[-1] if made == [AVX512, AVX512] else fitting(each, here))


def test_the_error_says_which_packages_there_are_and_which_machine_this_is() -> None:
    assert why_none(packages(SM_90), SM_80) == "the target aoti was built for GPU architecture 9.0, but this is 8.0"
    assert why_none(packages(SM_80, SM_90), SM_100) == (
        "the target aoti has packages for sm_80, sm_90, but this machine is sm_100"
    )
    assert why_none(packages(AVX512, machine(torch="2.14.0", cpu="AVX2")), AVX2) == (
        "the target aoti has packages for x86_64-avx512, x86_64-avx2 (torch 2.14.0, but this is 2.13.0), "
        "but this machine is x86_64-avx2"
    )


def test_only_machine_code_depends_on_the_instructions_of_the_cpu() -> None:
    assert architecture_problems(AVX512, AVX2, "aoti") == ["a CPU with AVX512, but this one has AVX2"]
    assert architecture_problems(AVX512, AVX2, "export") == []
