"""Processes that are forks of a server: what they are given, how they end, and what is left where one is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from fuseconv.errors import UpstreamError
from fuseconv.parity import process as verification
from fuseconv.processes import forked as module
from fuseconv.processes import server
from fuseconv.processes.forked import Forked, Server, forked, prepare

TESTS = str(ROOT / "tests")
SHARED = module.SERVER


def started(*words: str, **settings: Any) -> Forked:
    return forked("support.in_a_fork", *words, path=[TESTS], **settings)


def output(process: Forked) -> bytes:
    return b"".join(iter(lambda: process.read(60) or b"", b""))


@pytest.fixture(autouse=True)
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that no other test uses: it has not imported torch, and is ended here."""
    own = Server()
    monkeypatch.setattr(module, "SERVER", own)
    yield
    own.end()


def server_id() -> int:
    assert module.SERVER._process is not None
    return module.SERVER._process.pid


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int) -> bool:
    """Whether a process ends within a while."""
    end = time.monotonic() + 60
    while is_alive(process) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_alive(process)


def test_a_fork_has_what_it_was_given_and_nothing_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a server that has imported all there is, which neither starts threads nor uses a GPU."""
    monkeypatch.setattr(module, "SERVER", SHARED)
    measuring = ["fuseconv.measure.duel", "fuseconv.measure.peers", "fuseconv.proof.checker", "torch._dynamo.source"]
    before = [*verification._beforehand(), *measuring]
    with started("facts", before=before, environment={"SET": "here"}, folder=str(tmp_path)) as process:
        found = json.loads(output(process))
        assert process.wait() == 0
    assert found == {
        "arguments": ["support.in_a_fork", "facts"],
        "folder": str(tmp_path),
        "set": "here",
        "first": TESTS,
        "is a leader": True,
        "sockets": [],
        "threads": 1,
        "used a GPU": False,
    }


def test_it_reads_what_is_written_to_it() -> None:
    with started("echo") as process:
        os.write(process.stdin, b"some words\n")
        assert output(process) == b"some words\n"


ENDS = {
    "well": (["exit", "0"], 0, ""),
    "with a status": (["exit", "7"], 7, ""),
    "with words": (["say", "no"], 1, ""),
    "with an exception": (["raise"], 1, "KeyError: 'ABSENT'"),
    "with a crash": (["crash"], -signal.SIGABRT, ""),
    "in another folder": (["facts"], 1, "FileNotFoundError"),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends(name: str) -> None:
    words, status, said = ENDS[name]
    settings = {"folder": "/absent"} if name == "in another folder" else {}
    with tempfile.TemporaryFile() as errors, started(*words, stderr=errors.fileno(), **settings) as process:
        assert process.wait() == status
        errors.seek(0)
        assert said in errors.read().decode()


def test_a_module_that_cannot_be_imported_says_why_and_the_server_lives_on() -> None:
    prepare("json")
    before = server_id()
    with tempfile.TemporaryFile() as errors, forked("support.absent", stderr=errors.fileno()) as process:
        assert process.wait() == 1
        errors.seek(0)
        assert b"ModuleNotFoundError" in errors.read()
    assert server_id() == before


def test_several_threads_have_a_process_each() -> None:
    def ask(number: int) -> bytes:
        with started("echo") as process:
            os.write(process.stdin, b"%d\n" % number)
            return output(process)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(32))) == [b"%d\n" % number for number in range(32)]


def test_what_is_closed_is_killed_with_what_it_started(tmp_path: Path) -> None:
    number = tmp_path / "number"
    with started("leave a child", str(number)):
        while not (number.exists() and number.read_text()):
            time.sleep(0.01)
        leader = int(number.read_text())
        assert is_alive(leader)
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    assert ends(leader)
    assert [ends(int(child)) for child in children] == [True]


def test_a_process_that_takes_too_long_is_an_error() -> None:
    with started("sleep") as process, pytest.raises(TimeoutError):
        process.wait(0.05)
    with started("exit", "3") as process:
        assert process.wait(60) == 3


def test_a_server_that_was_killed_takes_its_forks_along_and_is_replaced() -> None:
    with started("sleep") as process:
        os.kill(server_id(), signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert output(process) == b""
    with started("exit", "3") as process:
        assert process.wait() == 3


def test_a_server_that_is_ended_takes_along_what_its_forks_started(tmp_path: Path) -> None:
    number = tmp_path / "number"
    with started("leave a child", str(number)) as process:
        while not (number.exists() and number.read_text()):
            time.sleep(0.01)
        leader = int(number.read_text())
        (child,) = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        module.SERVER.end()
        assert process.wait() == -signal.SIGKILL
    assert ends(leader)
    assert ends(int(child))


def test_a_server_that_does_not_answer_is_ended() -> None:
    prepare("json")
    before = server_id()
    os.kill(before, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        started("exit", "0", seconds=0.2)
    assert not is_alive(before)
    with started("exit", "0") as process:
        assert process.wait() == 0


def test_a_server_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(UpstreamError, match=r"the process that runs support\.in_a_fork does not start"):
            started("exit", "0")
    with started("exit", "0") as process:
        assert process.wait() == 0


LEFT = """
import os, sys
from fuseconv.processes.forked import SERVER, forked

process = forked("support.in_a_fork", "leave a child", sys.argv[1], path=[sys.argv[2]])
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    pass
print(SERVER._process.pid, flush=True)
sys.stdin.read()
"""


def test_who_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    number = tmp_path / "number"
    command = [sys.executable, "-c", LEFT, str(number), TESTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        of_server = int(caller.stdout.readline())
        caller.kill()
    assert ends(int(number.read_text()))
    assert ends(of_server)


def test_an_idle_server_takes_what_was_sent_before_it_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a fork of this process, where requests are sent while it closes its socket."""
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        ours.close()
        monkeypatch.setattr(server, "IDLE", 0.2)
        try:
            if run := server.serve(theirs):
                run()
        finally:
            os._exit(0)
    theirs.close()
    served, refused = 0, False
    end = time.monotonic() + 60
    while not refused and time.monotonic() < end:
        own, other = socket.socketpair()
        try:
            with other:
                socket.send_fds(ours, [b"+"], [other.fileno(), *[os.open(os.devnull, os.O_RDWR) for _ in range(3)]])
            own.sendall(json.dumps({"module": "", "before": []}).encode() + b"\n")
            assert own.recv(1) == b""  # it has read the request, and closed its socket
            served += 1
            time.sleep(0.05 * served)
        except ConnectionError:
            refused = True
        own.close()
    assert served > 1
    assert refused
    assert os.waitpid(child, 0)[1] == 0
    ours.close()


def test_threads_that_start_at_once_have_one_server() -> None:
    found: set[int] = set()

    def ask() -> None:
        prepare("json")
        found.add(server_id())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1


def test_what_torch_reads_when_it_is_imported_needs_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with started("echo") as process:
        before = server_id()
        for later in ("CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR"):  # torch sets the second one itself
            monkeypatch.setenv(later, "")
            with started("exit", "0"):
                assert server_id() == before
        monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
        with started("exit", "0"):
            assert server_id() != before
        os.write(process.stdin, b"still here\n")
        assert output(process) == b"still here\n"
    assert ends(before)
