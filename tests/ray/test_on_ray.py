"""Ray Serve: two replicas under load, of which one is killed; new weights by `user_config`; the command.

    pip install -c constraints.txt 'fuseconv[ray]'
    python -m pytest -m ray tests/ray

Ray is not in the environment of the other tests; without `-m ray` these are not collected.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from support.calls import draw
from support.served import with_buckets

from fuseconv.bundle.manifest import open_bundle, read_manifest, seal
from fuseconv.errors import UpstreamError
from fuseconv.numerics.tolerance import compare
from fuseconv.runtime.model import load
from fuseconv.serving.client import Client
from fuseconv.serving.responses import Body

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]  # Ray warns

PORT = 18123
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def block(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_buckets(bundle, tmp_path_factory.mktemp("served") / "block.fuseconv")


def deploy(block: Path, weights: Path | None = None) -> None:
    """Deploys what a YAML file says. `serve deploy`, which does this, needs the dashboard."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    arguments = {"bundles": {"block": str(block)}, "target": "torchscript", "replicas": 2, "cpus": 0.5}
    replica = {"name": "Replica", "user_config": {"bundles": {"block": str(weights)} if weights else {}}}
    path = "fuseconv.serving.on_ray:app"
    application = {"name": "fuseconv", "import_path": path, "args": arguments, "deployments": [replica]}
    _get_global_client().deploy_apps(ServeDeploySchema(applications=[application]), _blocking=True)


@pytest.fixture(scope="module")
def server(block: Path) -> Iterator[None]:
    """Serves two replicas."""
    from ray import serve

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    deploy(block)
    yield
    serve.shutdown()
    ray.shutdown()


def replicas() -> set[str]:
    """Returns the names of the replicas."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"] for one in named if "#Replica#" in one["name"]}


def test_no_request_is_lost_or_wrong_while_a_replica_is_killed(server: None, block: Path) -> None:
    contract, model = open_bundle(block).contract, load(block, target="torchscript")
    client = Client(URL, "block", timeout=120)
    calls = [draw(1 + at % 3, 4 + at % 4) for at in range(12)]
    expected = [model(*tensors)._asdict() for tensors in calls]
    before = replicas()
    assert len(before) == 2

    def ask(at: int) -> list[str]:
        tensors, direct = calls[at % len(calls)], expected[at % len(calls)]
        found = client.infer(contract, [tensor.numpy() for tensor in tensors], binary=True)
        pairs = {name: (torch.from_numpy(found[name].array), one) for name, one in direct.items()}
        return [row.reason for x, y in pairs.values() if not (row := compare(x, y, y.double())).ok]

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(ask, at) for at in range(1000)]
        while sum(future.done() for future in futures) < 300:
            time.sleep(0.01)
        killed = min(before)
        ray.kill(ray.get_actor(killed, namespace="serve"))
        wrong = [future.result() for future in futures]
    assert wrong == [[]] * 1000  # an answer that is lost raises
    until = time.monotonic() + 120
    while len(alive := replicas()) < 2 or killed in alive:
        assert time.monotonic() < until, "the replica is not replaced"
        time.sleep(0.5)


def test_the_same_endpoints(server: None, block: Path) -> None:
    with urllib.request.urlopen(f"{URL}/v2/models/block") as answer:
        assert json.load(answer)["platform"] == "fuseconv_torchscript"
    contract = open_bundle(block).contract
    with pytest.raises(UpstreamError, match="x has size 17 at axis 0"):
        Client(URL, "block").infer(contract, [tensor.numpy() for tensor in draw(17, 5)], binary=True)
    with pytest.raises(UpstreamError, match="403"):
        Client(URL, "block")._send("/v2/repository/models/block/load", Body(b"{}", {}))


def test_new_weights_by_user_config(server: None, block: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.fuseconv"
    subprocess.run(["cp", "-r", block, other], check=True)
    manifest = read_manifest(other)
    (other / "note.txt").write_text("another version")
    seal(other, manifest)
    contract, arrays = manifest.contract, [tensor.numpy() for tensor in draw(2, 5)]
    client, failed, done = Client(URL, "block", timeout=120), [], threading.Event()

    def calls() -> None:
        while not done.is_set():
            try:
                client.infer(contract, arrays, binary=True)
            except UpstreamError as error:
                failed.append(error)

    def version() -> Any:
        return client.metadata()[1]["versions"][0]

    first, thread = version(), threading.Thread(target=calls)
    thread.start()
    names = replicas()
    deploy(block, other)
    until = time.monotonic() + 60
    while first in (version() for _ in range(20)):
        assert time.monotonic() < until
    versions = {version() for _ in range(20)}
    done.set()
    thread.join()
    assert failed == []
    assert first not in versions
    assert len(versions) == 1
    assert replicas() == names


def command(block: Path, port: int) -> list[str]:
    words = ["serve", str(block), "--port", str(port), "--target", "torchscript", "--warm-up", "1"]
    return [sys.executable, "-m", "fuseconv", *words]


def wait_for(text: str, log: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 180
    while text not in log.read_text():
        assert time.monotonic() < until
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)


def test_the_command(block: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    start = command(block, PORT + 1)
    with log.open("w") as said, subprocess.Popen(start, stdout=subprocess.PIPE, stderr=said, text=True) as process:
        client = Client(f"http://127.0.0.1:{PORT + 1}", "block", timeout=60)
        contract, arrays = open_bundle(block).contract, [tensor.numpy() for tensor in draw(2, 5)]
        wait_for("serving on", log, process)
        outputs = client.infer(contract, arrays, binary=True)
        for _ in range(3):  # the later signals arrive while Ray Serve shuts down, and do not interrupt that
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        out, _ = process.communicate(timeout=120)
    err = log.read_text()
    assert set(outputs) == set(contract.outputs)
    assert process.returncode == 0, err
    assert "served for" in out
    assert "1 replicas on Ray Serve" in err


def test_sigterm_while_ray_starts_interrupts_the_command(block: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as said, subprocess.Popen(command(block, PORT + 2), stderr=said, text=True) as process:
        wait_for("Started a local Ray instance", log, process)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    assert process.returncode == 130, log.read_text()
    assert "error: interrupted" in log.read_text()
