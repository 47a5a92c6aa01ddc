"""A real Triton Inference Server on the repositories that fuseconv writes: parity, batches, errors, the configuration.

    pip install --no-deps -c constraints.txt nvidia-pytriton tritonclient grpcio python-rapidjson
    python -m pytest -m tritonserver tests/tritonserver

PyTriton has the server and its Python backend for every Python, and needs no GPU. It is installed without what it
requires, which is an older NumPy. It is not in the environment of the other tests; without `-m tritonserver` these are
not collected.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from support.served import with_buckets
from tritonclient.grpc import model_config_pb2

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle
from fuseconv.contract.buckets import parse_buckets
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.verify_server import verify_server
from fuseconv.runtime.model import load
from fuseconv.serving.client import Client
from fuseconv.tritonserver.repository import BACKENDS, CONFIG, write_repository

pytestmark = [pytest.mark.tritonserver, pytest.mark.timeout(600)]

HTTP, GRPC = 18431, 18432
URL = f"http://127.0.0.1:{HTTP}"


def convert_mlp(folder: Path, name: str, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to(dtype).eval()
    dims = ({0: torch.export.Dim("batch", min=1, max=64)},)
    inputs = (torch.randn(4, 16, dtype=dtype),)
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dims), folder / f"{name}.pt2")
    names = ["export", "torchscript", "onnx", "onnx-plugin"] if dtype is torch.float32 else ["export"]
    buckets = parse_buckets("dim0=1,4,16")
    return convert(folder / f"{name}.pt2", target=names, buckets=buckets, output=folder / f"{name}.fuseconv").bundle


@pytest.fixture(scope="module")
def bundles(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles by the names of their models: f32 and bf16, whose requests Triton batches, and two that it cannot."""
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "mlp": convert_mlp(folder, "mlp", torch.float32),
        "narrow": convert_mlp(folder, "narrow", torch.bfloat16),
        "block": Path(shutil.copytree(bundle, folder / "block.fuseconv")),
        "rows": with_buckets(bundle, folder / "rows.fuseconv"),
    }


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("triton")
    for name, path in bundles.items():
        words = ["triton", str(path), "-o", str(folder / "models"), "--target", "export", "--instances", "2", "-q"]
        assert cli.main(words) == 0, name
    spec = find_spec("pytriton")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    own, version = package / "tritonserver", f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(own / "backends" / "python", folder / "backends" / "python")
    stub = own / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, folder / "backends" / "python")
    program = str(shutil.copy(own / "bin" / "tritonserver", folder))
    for file in (program, folder / "backends" / "python" / stub.name):
        Path(file).chmod(0o755)
    words = [program, f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"]
    words += [f"--http-port={HTTP}", f"--grpc-port={GRPC}", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    # The Python of the backend is that of the first `python3` on the PATH; it does not read PYTHONPATH.
    libraries = f"{package.parent / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "LD_LIBRARY_PATH": libraries}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*words, "--allow-metrics=false"], env=environment, stdout=log, stderr=log)
    try:
        for _ in range(240):
            assert process.poll() is None, (folder / "log").read_text()[-4000:]
            if is_ready():
                break
            time.sleep(1)
        else:
            pytest.fail((folder / "log").read_text()[-4000:])
        yield
    finally:
        process.terminate()
        process.wait(60)


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/v2/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.parametrize("name", ["mlp", "narrow", "block", "rows"])
def test_the_server_computes_what_the_model_computes(name: str, bundles: dict[str, Path], server: None) -> None:
    """Every case that the bundle was verified with: all sizes, NaN, infinities; f32, bf16, i64 and bool tensors."""
    for url in (URL, f"grpc://127.0.0.1:{GRPC}"):
        report = verify_server(bundles[name], url)
        assert report.ok, report.error(name)
        assert not report.untried
        assert {row.case for row in report.rows} >= {"smallest", "NaN", "extremes"}


def test_what_grpc_does_not_find_is_an_error(bundles: dict[str, Path], server: None) -> None:
    for url, name, said in (
        (f"grpc://127.0.0.1:{GRPC}", "none", "NOT_FOUND.*unknown model"),
        ("grpc://127.0.0.1:1", "mlp", "UNAVAILABLE"),
        (f"grpc://127.0.0.1:{GRPC}", "block", "takes x FP32, skip FP32, keep BOOL, but the bundle takes input FP32"),
    ):
        with pytest.raises(FuseconvError, match=said):
            verify_server(bundles["mlp"], url, name)


def test_the_command_verifies_it(bundles: dict[str, Path], server: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(bundles["block"]), "--server", URL, "--served-as", "rows", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


def stats(name: str) -> dict[int, int]:
    """The number of calls of a model by their numbers of rows."""
    with urllib.request.urlopen(f"{URL}/v2/models/{name}/stats") as answer:
        (one,) = json.load(answer)["model_stats"]
    return {int(row["batch_size"]): int(row["compute_infer"]["count"]) for row in one["batch_stats"]}


def test_requests_are_computed_together(bundles: dict[str, Path], server: None) -> None:
    contract, client, model = open_bundle(bundles["mlp"]).contract, Client(URL, "mlp"), load(bundles["mlp"], "export")
    inputs = [torch.randn(1, 16) for _ in range(64)]
    before = stats("mlp")

    def ask(x: torch.Tensor) -> np.ndarray[Any, np.dtype[Any]]:
        return client.infer(contract, [x.numpy()], binary=True)["output_0"].array

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, inputs))
    for x, y in zip(inputs, found, strict=True):
        torch.testing.assert_close(torch.from_numpy(y), model(x), rtol=1e-5, atol=1e-5)
    made = {rows: count - before.get(rows, 0) for rows, count in stats("mlp").items()}
    assert sum(rows * count for rows, count in made.items()) == 64
    assert any(count for rows, count in made.items() if rows > 1), made


def test_a_call_outside_of_the_contract_is_an_error_of_the_contract(bundles: dict[str, Path], server: None) -> None:
    contract, client = open_bundle(bundles["block"]).contract, Client(URL, "block")
    good = [np.ones((2, 32, 8), np.float32), np.ones((2, 32, 8), np.float32), np.ones((2, 32), np.bool_)]
    wrong = [array[:1].repeat(33, 1) if at else np.ones((1, 33, 8), np.float32) for at, array in enumerate(good)]
    with pytest.raises(UpstreamError, match=r"input x has size 33 at axis 1, outside seq:1\.\.32"):
        client.infer(contract, [array[:, :33] for array in wrong], binary=True)
    assert client.infer(contract, good, binary=True).keys() == set(contract.outputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_triton_parses_every_configuration(backend: Any, bundles: dict[str, Path], tmp_path: Path) -> None:
    for name in ("mlp", "block"):
        made = write_repository(bundles[name], tmp_path, name, backend=backend, instances=3)
        config = text_format.Parse((made.model / CONFIG).read_text(), model_config_pb2.ModelConfig())
        assert config.name == name
        assert config.backend == backend
        assert config.max_batch_size == (64 if name == "mlp" else 0)
        assert config.instance_group[0].count == 3
        assert [one.batch_size for one in config.model_warmup] == ([1, 4, 16] if name == "mlp" else [0])
        assert len(config.model_operations.op_library_filename) == (backend == "onnxruntime")
        for warm_up in config.model_warmup:
            for key, value in warm_up.inputs.items():
                size = int(np.prod(value.dims)) * {model_config_pb2.TYPE_BOOL: 1}.get(value.data_type, 4)
                assert (made.model / "warmup" / value.input_data_file).stat().st_size == size, key
