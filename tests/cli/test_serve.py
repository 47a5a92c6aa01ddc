"""`fuseconv serve --local` and `fuseconv verify --server`: a server in this process, called from another thread."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.calls import draw
from support.served import with_buckets

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import UpstreamError
from fuseconv.serving.batching import Batcher
from fuseconv.serving.client import Client
from fuseconv.serving.engine import Call, Engine, Result

Serve = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def block(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "plain").symlink_to(bundle)
    return with_buckets(bundle, folder / "block.fuseconv")


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    """Serves while a client runs, and returns the exit status, stdout and stderr."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def run(client: Callable[[str], object], *words: object) -> tuple[int, str, str]:
        failed: list[BaseException] = []

        def talk() -> None:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_for(url)
                client(url)
            except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
                failed.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=talk)
        thread.start()
        given = ["--port", str(port), "--target", "torchscript", "--warm-up", "0", *map(str, words)]
        status = cli.main(["serve", "--local", *given])
        thread.join()
        if failed:
            raise failed[0]
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def wait_for(url: str) -> None:
    for _ in range(2000):
        try:
            with urllib.request.urlopen(f"{url}/v2/health/ready"):
                return
        except OSError:
            time.sleep(0.005)
    raise AssertionError("the server did not start")


def infer(url: str, bundle: Path, name: str = "block", rows: int = 2) -> Any:
    contract = open_bundle(bundle).contract
    arrays = [tensor.numpy() for tensor in draw(rows, 5)]
    return Client(url, name, timeout=30).infer(contract, arrays, binary=True)


def test_it_says_what_it_serves_and_what_it_served(serve: Serve, block: Path, bundle: Path) -> None:
    def client(url: str) -> None:
        infer(url, block)
        infer(url, bundle, "plain")
        with pytest.raises(UpstreamError, match="there is no model 'other'"):
            infer(url, block, "other")

    status, out, err = serve(client, block, f"plain={bundle}")
    assert status == 0
    assert "block: torchscript on cpu, batches of up to 8 rows of batch, delay 2 ms" in err
    assert "plain: torchscript on cpu, one request at a time (convert with --bucket" in err
    assert "no authentication" in err
    assert re.search(r"warning event=request .* status=404 .*there is no model", err)
    assert "status=200" not in err
    assert re.search(r"block +1 x 200 +1 +2 ", out)


def test_json_lines_and_a_json_summary(serve: Serve, block: Path) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def client(url: str) -> None:
        given = {"traceparent": traceparent, "x-request-id": "no id=1"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/models/block", headers=given)) as answer:
            assert answer.status == 200

    status, out, err = serve(client, block, "--json", "--log-requests", "-q")
    assert (status, json.loads(out)["result"]["models"]["block"]["requests"]) == (0, {})
    assert err == ""  # -q: errors only
    status, out, err = serve(client, block, "--json", "--log-requests")
    logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    found = next(line for line in logged if line["path"] == "/v2/models/block")
    assert (found["trace_id"], found["status"]) == ("0af7651916cd43dd8448eb211c80319c", 200)
    assert re.fullmatch("[0-9a-f]{32}", found["request_id"])  # the malformed one was replaced


def test_accepted_requests_are_answered_after_sigterm(
    serve: Serve, block: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted, submit, run = threading.Semaphore(0), Batcher.submit, Engine.run

    async def counted(batcher: Batcher[Call, Result], *request: Any) -> Result:
        accepted.release()
        return await submit(batcher, *request)

    def slow(engine: Engine, calls: list[Call]) -> list[Result]:
        time.sleep(0.2)
        return run(engine, calls)

    monkeypatch.setattr(Batcher, "submit", counted)
    monkeypatch.setattr(Engine, "run", slow)
    answers: list[Any] = []
    threads: list[threading.Thread] = []

    def client(url: str) -> None:
        for _ in range(3):
            threads.append(threading.Thread(target=lambda: answers.append(infer(url, block))))
            threads[-1].start()
            assert accepted.acquire(
                timeout=10
            )  # the first runs and the others wait in the queue; then comes the signal

    status, out, _ = serve(client, block, "--max-batch", 2, "--delay", 0)
    for thread in threads:
        thread.join()
    assert (status, len(answers)) == (0, 3)
    assert "3 x 200" in out


@pytest.mark.parametrize("given", ["block", "other name"])
def test_a_server_is_verified(
    given: str, serve: Serve, block: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found: dict[str, Any] = {}
    name = [] if given == "block" else ["--served-as", "b"]

    def client(url: str) -> None:
        capsys.readouterr()
        found["status"] = cli.main(["verify", str(block), "--server", url, "--json", *name])
        found["record"] = json.loads(capsys.readouterr().out)

    serve(client, block if given == "block" else f"b={block}", "-q")
    result = found["record"]["result"]
    assert found["status"] == 0
    assert set(result["targets"]) == {"server"}
    assert result["run"]["cases"] > 4
    assert result["run"]["rows"] == result["run"]["cases"] * 4


def test_a_wrong_server_fails(
    serve: Serve, block: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Engine.run
    found: dict[str, Any] = {}

    def client(url: str) -> None:
        first = open_bundle(block).contract.outputs[0]

        def wrong(engine: Engine, calls: list[Call]) -> list[Result]:
            results = run(engine, calls)
            for result in results:
                result.outputs[first].array.flat[:] += 1
            return results

        monkeypatch.setattr(Engine, "run", wrong)
        found["status"] = cli.main(["verify", str(block), "--server", url, "--json"])
        found["record"] = json.loads(capsys.readouterr().out)
        found["absent"] = cli.main(["verify", str(block), "--server", url, "--served-as", "absent"])
        assert "there is no model 'absent'" in capsys.readouterr().err

    serve(client, block, "-q")
    assert (found["status"], found["absent"]) == (1, 5)
    assert "target server" in found["record"]["error"]["message"]


WRONG: dict[str, tuple[list[str], int, str]] = {
    "no bundle": (["serve", "--local", "{}/absent"], 2, "does not exist"),
    "none": (["serve", "--local"], 2, "Missing argument"),
    "two of a name": (["serve", "--local", "{}/block.fuseconv", "{}/block.fuseconv"], 2, "two bundles have the name"),
    "a name of a path": (["serve", "--local", "a/b={}/block.fuseconv"], 2, "does not exist"),
    "an unknown target": (["serve", "--local", "{}/block.fuseconv", "--target", "tflite"], 2, "unknown target"),
    "a port": (["serve", "--local", "{}/block.fuseconv", "--port", "70000"], 2, "--port"),
    "too many rows": (["serve", "--local", "{}/block.fuseconv", "--max-batch", "99", "--port", "0"], 2, "at most 16"),
    "no buckets": (["serve", "--local", "{}/plain", "--max-batch", "9", "--port", "0"], 2, "no bundle has buckets"),
    "no server": (["verify", "{}/block.fuseconv", "--server", "http://127.0.0.1:9"], 5, "does not answer"),
    "no URL": (["verify", "{}/block.fuseconv", "--server", "localhost:9"], 2, "not an HTTP or gRPC URL"),
    "a name alone": (["verify", "{}/block.fuseconv", "--served-as", "x"], 2, "needs --server"),
    "both": (["verify", "{}/block.fuseconv", "--server", "http://x", "--all-runtimes"], 2, "cannot be combined"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_words(case: str, block: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, status, said = WRONG[case]
    assert cli.main([word.format(block.parent) for word in words]) == status
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken(block: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", "--local", str(block), "--port", port]) == 5
    assert "Address already in use" in capsys.readouterr().err


def test_a_name_that_cannot_be_in_a_url(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a model").symlink_to(bundle)
    assert cli.main(["serve", "--local", str(tmp_path / "a model")]) == 2
    assert "NAME=PATH" in capsys.readouterr().err
