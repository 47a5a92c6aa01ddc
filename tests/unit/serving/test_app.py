"""The endpoints without a socket: answers of a real bundle, statuses of errors, metrics, exchange of weights."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from starlette.types import ASGIApp
from support.calls import VIOLATIONS, draw
from support.served import INFER, Answer, binary, call, with_buckets

from fuseconv.bundle.manifest import open_bundle, read_manifest, seal
from fuseconv.errors import FuseconvError, RefusedError
from fuseconv.provenance.signature import sign
from fuseconv.runtime.model import load
from fuseconv.serving.app import application
from fuseconv.serving.batching import Limits
from fuseconv.serving.bodies import Bodies
from fuseconv.serving.datatypes import DATATYPES
from fuseconv.serving.engine import Call, Engine, Result
from fuseconv.serving.service import Service

Client = Callable[[ASGIApp], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def served(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_buckets(bundle, tmp_path_factory.mktemp("served") / "block.fuseconv")


@pytest.fixture(scope="module")
def engine(served: Path) -> Engine:
    return Engine(served, target="torchscript")


@pytest.fixture
def service(engine: Engine) -> Service:
    return Service({"block": engine}, Limits(rows=0, delay=0.02))


def asked(service: Service, client: Client, bodies: Bodies | None = None) -> Any:
    """Returns what a client returns that talks to the application, which is then shut down."""

    async def run() -> Any:
        app = application(service, bodies or Bodies(2**20, 2**23, 5.0))
        async with app.router.lifespan_context(app):
            return await client(app)

    return asyncio.run(run())


def get(service: Service, path: str) -> Answer:
    answer = asked(service, lambda app: call(app, path))
    assert isinstance(answer, Answer)
    return answer


def test_requests_share_a_batch_and_each_gets_its_rows(service: Service, engine: Engine) -> None:
    calls = [draw(rows, 5) for rows in (1, 3, 2)] + [draw(2, 7)]
    bodies = [binary(engine.contract, [tensor.numpy() for tensor in tensors]) for tensors in calls]

    async def client(app: ASGIApp) -> Sequence[Answer]:
        return await asyncio.gather(*(call(app, INFER, *body) for body in bodies))

    answers = asked(service, client)
    direct = load(engine.bundle, target="torchscript")
    for tensors, answer in zip(calls, answers, strict=True):
        assert answer.status == 200
        for name, expected in direct(*tensors)._asdict().items():
            torch.testing.assert_close(torch.from_numpy(answer.arrays()[name].copy()), expected)
    summary = service.metrics.summary("block")
    assert (summary["requests"], summary["batches"], summary["rows"]) == ({"200": 4}, 2, 8)


def test_without_buckets_each_request_is_computed_by_itself(bundle: Path) -> None:
    service = Service({"block": Engine(bundle, target="torchscript")}, Limits(rows=0))
    body = binary(service.models["block"].engine.contract, [tensor.numpy() for tensor in draw(2, 5)])

    async def client(app: ASGIApp) -> Sequence[Answer]:
        return await asyncio.gather(*(call(app, INFER, *body) for _ in range(3)))

    assert [answer.status for answer in asked(service, client)] == [200] * 3
    assert service.metrics.summary("block")["batches"] == 3


def test_json_in_and_out(service: Service, engine: Engine) -> None:
    x, skip, keep = draw(1, 2)
    inputs = [
        {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": list(tensor.shape), "data": tensor.tolist()}
        for spec, tensor in zip(engine.contract.inputs, (x, skip, keep), strict=True)
    ]
    outputs = [{"name": name} for name in engine.contract.outputs[2:]]
    body = orjson.dumps({"id": "mine", "inputs": inputs, "outputs": outputs})
    answer = asked(service, lambda app: call(app, INFER, body, {"x-request-id": "id-1"}))
    assert answer.headers["x-request-id"] == "id-1"
    found = answer.json()
    assert (found["model_name"], found["model_version"], found["id"]) == ("block", engine.version, "mine")
    count, masked = found["outputs"]
    assert (count["datatype"], count["shape"], count["data"]) == ("INT64", [1], [int(keep.sum())])
    assert (masked["datatype"], masked["data"]) == ("BOOL", (~keep).flatten().tolist())


def test_health_and_metadata(service: Service, engine: Engine) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/block/ready"):
        assert get(service, path).status == 200 or service._draining  # each call shuts the service down
    fresh = Service({"block": engine}, Limits(rows=0))
    found = get(fresh, f"/v2/models/block/versions/{engine.version}").json()
    assert found["platform"] == "fuseconv_torchscript"
    assert found["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 8]}
    shapes = [(one["datatype"], one["shape"]) for one in found["outputs"]]
    assert shapes == [("FP32", [-1, -1, 8]), ("FP32", [-1, 8]), ("INT64", [-1]), ("BOOL", [-1, -1])]
    assert get(fresh, "/v2/health/ready").status == 503  # it was shut down
    assert get(fresh, "/v2/health/live").status == 200
    assert get(fresh, "/v2").json()["extensions"] == ["binary_tensor_data", "model_repository"]


@pytest.mark.parametrize("case", [case for case in VIOLATIONS if "no_tensor" not in case and "device" not in case])
def test_calls_outside_of_the_contract_get_its_error(case: str, service: Service, engine: Engine) -> None:
    args, kwargs, said = VIOLATIONS[case]
    tensors = {f"extra{at}" if at > 2 else engine.contract.names[at]: one for at, one in enumerate(args)} | kwargs
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[{"torch.float32": "f32", "torch.float64": "f64"}.get(str(one.dtype), "bool")],
            "shape": list(one.shape),
            "data": one.flatten().tolist(),
        }
        for name, one in tensors.items()
        if isinstance(one, torch.Tensor)
    ]
    answer = asked(service, lambda app: call(app, INFER, orjson.dumps({"inputs": inputs})))
    if case == "twice":  # by name, an input cannot be passed twice
        assert answer.status == 200
        return
    assert answer.status == 400
    assert (said if "positional" not in said else "the call passes") in answer.json()["error"]


REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no such model": ("/v2/models/other/infer", {"body": b"{}"}, 404, "use one of block"),
    "no such version": ("/v2/models/block/versions/7/infer", {"body": b"{}"}, 404, "has no version '7'"),
    "no such path": ("/v2/models", {}, 404, "Not Found: GET /v2/models"),
    "another method": (INFER, {}, 405, "Method Not Allowed"),
    "too large": (INFER, {"body": b" " * (2**20 + 1)}, 413, "more than 1048576 bytes"),
    "too large in parts": (INFER, {"body": [b" " * 2**19] * 3}, 413, "more than 1048576 bytes"),
    "compressed": (INFER, {"body": b"", "headers": {"content-encoding": "gzip"}}, 415, "content encoding gzip"),
    "a wrong length": (INFER, {"body": [b""], "headers": {"content-length": "-1"}}, 400, "not a number"),
    "exchange of weights": ("/v2/repository/models/block/load", {"body": b""}, 403, "--swap-from"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_have_their_status(case: str, service: Service) -> None:
    path, given, status, said = REFUSED[case]
    answer = asked(service, lambda app: call(app, path, **given))
    assert answer.status == status
    assert said in answer.json()["error"]


def test_the_memory_for_bodies_is_limited_and_comes_back(service: Service) -> None:
    bodies = Bodies(100, 150, 5.0)

    async def client(app: ASGIApp) -> Sequence[Answer]:
        answers = [await call(app, INFER, b"x" * 100) for _ in range(3)]  # not JSON
        async with bodies.read(_Held(b"x" * 100)):  # type: ignore[arg-type]
            answers.append(await call(app, INFER, b"x" * 100))
        return [*answers, await call(app, INFER, b"x" * 100)]

    answers = asked(service, client, bodies)
    assert [answer.status for answer in answers] == [400, 400, 400, 429, 400]
    assert answers[3].headers["retry-after"] == "1"


class _Held:
    def __init__(self, body: bytes) -> None:
        self.headers = {"content-length": str(len(body))}
        self._body = body

    async def stream(self) -> Any:
        yield self._body


def test_a_body_that_does_not_come_is_not_awaited_for_ever(service: Service) -> None:
    class Slow(_Held):
        async def stream(self) -> Any:
            await asyncio.sleep(60)
            yield b""

    async def client() -> None:
        async with Bodies(100, 100, 0.01).read(Slow(b"x")):  # type: ignore[arg-type]
            pass

    with pytest.raises(FuseconvError, match="did not arrive within"):
        asyncio.run(client())


class _Faulty(Engine):
    """An engine that fails for a batch with a large number."""

    def run(self, calls: Sequence[Call]) -> list[Result]:
        if any(float(arrays[0].flat[0]) > 100 for arrays in calls):
            raise FuseconvError("it is too large", where="x", fix="send a smaller one")
        return super().run(calls)


def test_who_shares_a_batch_with_a_failing_request_is_not_affected(served: Path) -> None:
    service = Service({"block": _Faulty(served, target="torchscript")}, Limits(rows=0, delay=0.02))
    contract = service.models["block"].engine.contract
    calls = [[tensor.numpy().copy() for tensor in draw(1, 5)] for _ in range(4)]
    calls[2][0][:] = 1000

    async def client(app: ASGIApp) -> Sequence[Answer]:
        return await asyncio.gather(*(call(app, INFER, *binary(contract, arrays)) for arrays in calls))

    answers = asked(service, client)
    assert [answer.status for answer in answers] == [200, 200, 500, 200]
    assert "it is too large" in answers[2].json()["error"]


def test_the_event_loop_does_not_wait_for_the_model(served: Path) -> None:
    class Slow(Engine):
        def run(self, calls: Sequence[Call]) -> list[Result]:
            time.sleep(0.4)
            return super().run(calls)

    service = Service({"block": Slow(served, target="torchscript")}, Limits(rows=0, delay=0, timeout=0.2))
    body = binary(service.models["block"].engine.contract, [tensor.numpy() for tensor in draw(1, 5)])

    async def client(app: ASGIApp) -> tuple[Answer, float]:
        late = asyncio.create_task(call(app, INFER, *body))
        await asyncio.sleep(0.01)
        begun = time.perf_counter()
        assert (await call(app, "/v2/health/live")).status == 200
        seconds = time.perf_counter() - begun
        return await late, seconds

    answer, seconds = asked(service, client)
    assert answer.status == 504
    assert seconds < 0.2


@pytest.fixture(scope="module")
def trained(served: Path) -> Path:
    """The bundle with other weights: all of them doubled."""
    folder = served.with_name("trained.fuseconv")
    shutil.copytree(served, folder)
    weights = folder / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    at = 8 + int.from_bytes(data[:8], "little")
    for tensor in (one for name, one in header.items() if name != "__metadata__"):
        low, high = (at + offset for offset in tensor["data_offsets"])
        values = torch.frombuffer(data[low:high], dtype=torch.float32) * 2
        data[low:high] = values.numpy().tobytes()
    weights.write_bytes(data)
    seal(folder, read_manifest(folder))
    return folder


def test_weights_are_exchanged_under_calls(served: Path, trained: Path) -> None:
    engine = Engine(served, target="torchscript")
    service = Service({"block": engine}, Limits(rows=0, delay=0), swap_from=served.parent)
    tensors = draw(2, 5)
    body = binary(
        engine.contract, [tensor.numpy() for tensor in tensors], outputs=[{"name": engine.contract.outputs[0]}]
    )
    path = "/v2/repository/models/block/load"
    old = engine.version

    async def client(app: ASGIApp) -> list[Answer]:
        answers: list[Answer] = []

        async def calls() -> None:
            while len(answers) < 10 or time.perf_counter() < until:
                answers.append(await call(app, INFER, *body))

        until = time.perf_counter() + 30
        task = asyncio.create_task(calls())
        wrong = [{"bundle": "../block.fuseconv"}, {"bundle": ".."}, {"bundle": "absent"}, {"bundle": ""}]
        for parameters in wrong:
            refused = await call(app, path, orjson.dumps({"parameters": parameters}))
            assert refused.status == 400, refused
        loaded = await call(app, path, orjson.dumps({"parameters": {"bundle": "trained.fuseconv"}}))
        assert (loaded.status, loaded.json()["version"]) == (200, engine.version)
        until = 0
        await task
        answers.append(await call(app, INFER, *body))
        return answers

    answers = asked(service, client)
    expected = {
        version: load(folder, target="torchscript")(*tensors)[0]
        for version, folder in ((old, served), (engine.version, trained))
    }
    assert old != engine.version
    versions = []
    for answer in answers:
        at = int(answer.headers["inference-header-content-length"])
        versions.append(orjson.loads(answer.body[:at])["model_version"])
        (found,) = answer.arrays().values()
        torch.testing.assert_close(torch.from_numpy(found.copy()), expected[versions[-1]])
    assert versions[-1] == engine.version
    assert set(versions) == {old, engine.version}


def test_another_model_is_no_new_weights(served: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(served, tmp_path / "other.fuseconv"))
    manifest = open_bundle(other)
    seal(other, manifest.model_copy(update={"contract": replace(manifest.contract, buckets=None)}))
    service = Service({"block": Engine(served, target="torchscript")}, Limits(rows=0), swap_from=tmp_path)
    body = orjson.dumps({"parameters": {"bundle": "other.fuseconv"}})
    answer = asked(service, lambda app: call(app, "/v2/repository/models/block/load", body))
    assert answer.status == 400
    assert "another contract" in answer.json()["error"]


def test_only_signed_bundles_are_served_and_loaded(served: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "key.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    signed, unsigned = (Path(shutil.copytree(served, tmp_path / name)) for name in ("a.fuseconv", "b.fuseconv"))
    sign(signed, tmp_path / "key.pem")
    with pytest.raises(RefusedError, match="not signed"):
        Engine(unsigned, target="torchscript", signer=tmp_path / "key.pub")
    engine = Engine(signed, target="torchscript", signer=tmp_path / "key.pub")
    service = Service({"block": engine}, Limits(rows=0), swap_from=tmp_path)

    async def client(app: ASGIApp) -> list[Answer]:
        bodies = [orjson.dumps({"parameters": {"bundle": bundle.name}}) for bundle in (unsigned, signed)]
        return [await call(app, "/v2/repository/models/block/load", body) for body in bodies]

    refused, loaded = asked(service, client)
    assert (refused.status, loaded.status) == (400, 200)
    assert "the bundle is not signed" in refused.json()["error"]


def test_metrics(service: Service, engine: Engine) -> None:
    body = binary(engine.contract, [tensor.numpy() for tensor in draw(2, 5)])

    async def client(app: ASGIApp) -> str:
        await call(app, INFER, *body)
        await call(app, INFER, b"{}")
        await call(app, "/v2/models/other/infer", b"{}")
        return (await call(app, "/metrics")).body.decode()

    text = asked(service, client)
    for line in (
        'fuseconv_requests_total{model="block",status="200"} 1.0',
        'fuseconv_requests_total{model="block",status="400"} 1.0',
        'fuseconv_requests_total{model="",status="404"} 1.0',
        'fuseconv_batch_rows_sum{model="block"} 2.0',
        'fuseconv_queue_requests{model="block"} 0.0',
    ):
        assert line in text.splitlines()
