"""Untrusted rules are checked in a sandboxed process, and the cause of its death is reported for the rule."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

from fuseconv.errors import FuseconvError, RefusedError, RuleError
from fuseconv.proof.child import Child
from fuseconv.proof.confined import check_rules, check_with
from fuseconv.rulebook.rule import Rule
from fuseconv.untrusted import confinement

FILTERED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

ATTEMPTS = """
import ctypes, json, os, socket, sys, threading
from fuseconv.untrusted import confinement

folder = sys.argv[1]
old = os.path.join(folder, "old")
written = open(os.path.join(folder, "open"), "wb", buffering=0)
confinement.confine()

def syscall(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

attempts = {
    "write": lambda: open(os.path.join(folder, "new"), "w"),
    "append": lambda: open(old, "a"),
    "change": lambda: open(old, "r+"),
    "empty": lambda: os.truncate(old, 0),
    "remove": lambda: os.unlink(old),
    "rename": lambda: os.rename(old, old + "er"),
    "link": lambda: os.link(old, old + "er"),
    "mode": lambda: os.chmod(old, 0o777),
    "times": lambda: os.utime(old),
    "folder": lambda: os.mkdir(os.path.join(folder, "new")),
    "a file that was open": lambda: written.write(b"x"),
    "no file at all": lambda: os.memfd_create("x"),
    "network": lambda: socket.create_server(("127.0.0.1", 0)),
    "local socket": lambda: socket.socketpair(),
    "process": os.fork,
    "program": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
    "memory": lambda: bytearray(2 * confinement.MEMORY),
    "another filter": lambda: confinement.confine(),
    "rename, by its number": lambda: syscall(82 if os.uname().machine == "x86_64" else 38, b"a", b"b", b"c", b"d"),
}
done = {}
for name, attempt in attempts.items():
    try:
        attempt()
    except (OSError, MemoryError) as error:
        done[name] = type(error).__name__
    else:
        done[name] = "done"
thread = threading.Thread(target=lambda: done.update(thread="runs"))
thread.start()
thread.join()
done["read"] = open(old).read()
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("confined")
    (folder / "old").write_text("old")
    before = sorted(path.name for path in folder.iterdir())
    run = [sys.executable, "-c", ATTEMPTS, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (folder / "old").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "open"])
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["a file that was open", "memory"])
def test_limits_hold_everywhere(name: str, attempts: dict[str, str]) -> None:
    assert attempts[name] in ("OSError", "MemoryError")


def test_a_confined_process_changes_nothing_and_reaches_nobody(attempts: dict[str, str]) -> None:
    assert (attempts["read"], attempts["thread"]) == ("old", "runs")
    if FILTERED:
        others = set(attempts) - {"read", "thread", "a file that was open", "memory"}
        assert {name: attempts[name] for name in others} == dict.fromkeys(others, "PermissionError")


def test_limits_that_are_lower_already_stay() -> None:
    code = (
        "import resource; from fuseconv.untrusted.confinement import *; confine(); allow_seconds(300);"
        "print(resource.getrlimit(resource.RLIMIT_AS)[1] >> 10, resource.getrlimit(resource.RLIMIT_CPU))"
    )
    script = f"ulimit -v 2000000 -t 100; {sys.executable} -c '{code}'"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "2000000 (100, 100)\n", done.stderr


def test_the_filter_is_the_same_on_both_processors() -> None:
    """Each call that x86-64 and ARM64 have is refused on both; ARM64 lacks the old ones."""
    calls = [call.split(":") for call in confinement._FORBIDDEN.split()]
    assert len({name for name, _, _ in calls}) == len(calls)
    old = {name for name, _, arm in calls if arm == "-"}
    assert old == {
        *("creat", "rename", "mkdir", "rmdir", "unlink", "link", "symlink", "mknod", "chmod", "chown", "lchown"),
        *("utime", "utimes", "futimesat", "fork", "vfork"),
    }
    assert all(len(confinement._program(*column)) % 8 == 0 for column in confinement._ARCHITECTURES.values())


PACK = """
import ctypes, os, torch

@torch.library.custom_op("confined_tests::run", mutates_args=())
def run(x: torch.Tensor, what: int) -> torch.Tensor:
    if what == 1:
        ctypes.string_at(0)
    if what == 2:
        while True:
            pass
    if what == 3:
        os.write(1, b"this is no answer")
        print("nor is this")
    if what == 4:
        raise SystemError("unforeseen")
    if what == 5:
        return torch.ones(2**31).sum() + x
    return x.clone()

@run.register_fake
def _(x, what):
    return torch.empty_like(x)
"""

ENDS = {
    1: "rule odd: its examples crash the process that runs them (SIGSEGV)",
    2: "rule odd: its examples take more than 2 s of CPU time",
    4: "a bug in fuseconv: SystemError: unforeseen",
    5: "the example cannot run: ",
}


def odd(what: int) -> Rule:
    hit = ["x: f32[8, 8]", "y = aten.relu.default(x)", "return y"]
    runs = {"program": ["x: f32[4]", f"y = confined_tests.run.default(x, {what})", "return y"], "reason": "expected"}
    return Rule.model_validate(
        {
            "name": "odd",
            "stage": "fuse",
            "doc": "A rule.",
            "match": ["y = aten.relu.default(x)"],
            "replace": ["y = aten.clamp_min.default(x, 0)"],
            "examples": {"hit": [hit], "miss": [runs]},
        }
    )


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    path = tmp_path_factory.mktemp("pack") / "ops.py"
    path.write_text(PACK)
    child = Child([path], seconds=2)
    yield child
    child.end()


@pytest.mark.parametrize("what", ENDS)
def test_what_a_child_dies_of_is_said_of_the_rule(what: int, child: Child) -> None:
    with pytest.raises(FuseconvError) as caught:
        check_with([child], [odd(what)])
    assert caught.value.what.startswith(ENDS[what])
    assert isinstance(caught.value, RuleError) == (what != 4)
    assert caught.value.fix


def test_what_an_op_prints_is_no_answer_and_the_next_rule_is_checked(child: Child) -> None:
    rows = check_with([child], [odd(3)])
    assert [(row.check, row.ok) for row in rows] == [
        ("hit 0", True),
        ("variants", True),
        ("algebra", True),
        ("miss 0", False),
    ]


def test_a_rule_file_that_brings_ops_is_checked_where_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(PACK)
    rules = {"ops": ["ops.py"], "rules": [odd(3).model_dump(mode="json", exclude_none=True)]}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    with pytest.raises(RefusedError, match="--trust code"):
        check_rules(tmp_path / "rules.json")
