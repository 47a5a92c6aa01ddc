"""`fuseconv convert-many --ray` while workers, nodes and the command itself end; and a bundle in Ray Data.

    pip install -c constraints.txt 'fuseconv[ray]'
    python -m pytest -m ray tests/ray

The cluster is the one of bench/many.py: two nodes with one core each.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.data import ActorPoolStrategy
from ray.exceptions import RayTaskError
from support import ROOT
from support.calls import draw

import fuseconv
from fuseconv import cli
from fuseconv.errors import FileError, UpstreamError
from fuseconv.many import on_ray
from fuseconv.many.attempt import Task
from fuseconv.many.conversion import How
from fuseconv.many.fingerprint import environment
from fuseconv.many.listing import Entry
from fuseconv.numerics.tolerance import compare

sys.path.insert(0, str(ROOT / "bench"))

many = importlib.import_module("many")  # a script, not a package

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]  # Ray warns

MODELS = 15


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with many.cluster() as own:
        yield own.address


def test_each_bundle_is_made_once_while_a_worker_a_node_and_the_command_end(tmp_path: Path) -> None:
    found = many.faults(tmp_path, MODELS)
    assert found["exit_statuses"] == [130, 0]
    assert (found["bundles"], found["made_twice"]) == (MODELS, 0)
    assert found["kept"] >= found["made"][0] >= MODELS * 2 // 5  # one may be finished while the command is interrupted
    assert found["kept"] + found["made"][1] == MODELS
    assert found["nodes"] >= 2
    assert found["left_after_interrupt"] == 0
    assert found["hidden"] == ["lock"]


def test_a_model_whose_workers_always_end_fails(address: str, tmp_path: Path) -> None:
    listing, killed = many.save_models(tmp_path, 1), set[int]()
    run = many.Command(listing, tmp_path / "out", "--ray", address)
    for _ in range(on_ray.MAX_LOST):
        (worker,) = run.until(lambda: set(many.workers_of(listing)) - killed)
        os.kill(worker, signal.SIGKILL)
        killed.add(worker)
    status, (row,) = run.end()
    assert status == 1
    assert (row["status"], row["tries"], row["exit_status"]) == ("failed", 3, UpstreamError.exit_status)
    assert "3 workers ended during the conversion" in row["error"]
    assert list((tmp_path / "out").glob("*.fuseconv")) == []


def test_a_node_that_does_not_see_the_output_folder_stops_the_run(address: str, tmp_path: Path) -> None:
    task = Task(Entry("a", tmp_path / "a.pt2", {}), tmp_path, tmp_path / "absent", How(), environment())
    with pytest.raises(FileError, match=r"the node .+/[0-9a-f]{8} does not see the folder") as caught:
        list(on_ray.Cluster(address).attempts([task]))
    assert caught.value.where == str(tmp_path / "absent")
    assert "mount a shared file system" in caught.value.fix


def test_no_cluster() -> None:
    with pytest.raises(UpstreamError, match="Ray cannot be reached: Invalid address format"):
        list(on_ray.Cluster("nonsense").attempts([]))


@pytest.fixture
def connected(address: str) -> Iterator[None]:
    ray.init(address, log_to_driver=False)
    yield
    ray.shutdown()


def predicted(bundle: Path, rows: list[dict[str, Any]]) -> ray.data.Dataset:
    """Calls the bundle with batches of 20 rows, more than its contract allows."""
    return ray.data.from_items(rows).map_batches(
        fuseconv.ray.Predictor,
        fn_constructor_args=[bundle],
        fn_constructor_kwargs={"target": "torchscript", "keep": ["id"]},
        batch_size=20,
        compute=ActorPoolStrategy(size=1),
    )


def test_ray_data(connected: None, bundle: Path) -> None:
    x, skip, keep = (tensor.numpy() for tensor in draw(50, 5))
    rows = [{"id": at, "x": x[at], "skip": skip[at], "keep": keep[at]} for at in range(50)]
    found = sorted(predicted(bundle, rows).take_all(), key=lambda row: int(row["id"]))
    model = fuseconv.load(bundle, target="torchscript")
    assert [row["id"] for row in found] == list(range(50))
    for at, row in enumerate(found):
        outputs = model(*(torch.from_numpy(array[at : at + 1].copy()) for array in (x, skip, keep)))
        for name, output in outputs._asdict().items():
            found_output = torch.tensor(row[name], dtype=output.dtype)[None]
            assert compare(found_output, output, output.double()).ok


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "many.md").read_text()
    (code,), (said,) = (re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) for language in ("python", "text"))
    many.save_models(tmp_path, 1)
    made = tmp_path / "mlp.fuseconv"
    assert cli.main(["convert", str(tmp_path / "m000.pt2"), "-o", str(made), "--target", "torchscript"]) == 0
    code = code.replace("/models/bundles/mlp.fuseconv", str(made))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said


def test_ray_data_shows_the_error_of_the_contract(connected: None, bundle: Path) -> None:
    x, skip, keep = (tensor.numpy() for tensor in draw(3, 5))
    rows = [{"id": at, "x": x[at].astype("f8"), "skip": skip[at], "keep": keep[at]} for at in range(3)]
    with pytest.raises(RayTaskError, match="input x has dtype f64, but the contract says f32"):
        predicted(bundle, rows).take_all()
