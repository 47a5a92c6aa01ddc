"""`fuseconv` in forks of a process that has imported it.

A page of twenty commands would import torch twenty times. `command` puts a program named `fuseconv` into a folder that
hands its arguments, environment, folder and open files to a waiting process; a fork of that runs `cli.main` on them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(call)
    status = server.recv(1)
sys.exit(status[0] if status else "the command died")
"""


@contextmanager
def command(folder: Path) -> Iterator[None]:
    """Writes the program into the folder, to run while the context is open."""
    address = str(folder / "socket")
    process = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        program = folder / "fuseconv"
        program.write_text(CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
        yield
    finally:
        process.kill()
        process.communicate()


def serve(address: str) -> None:
    """Waits for calls, and forks for each."""

    from fuseconv.processes.imports import imports

    with imports():
        import torch._dynamo  # noqa: F401

        import fuseconv.commands.report
        import fuseconv.pipeline.convert  # noqa: F401
        from fuseconv.parity import process
        from fuseconv.rulebook.own_rules import load_rules

    load_rules()

    process.prepare()  # the forks have its server in common
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        print("ready", flush=True)
        while True:
            caller, _ = server.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run(caller)
            caller.close()


def run(caller: socket.socket) -> None:
    """Becomes the command that the caller asks for, and ends."""
    from fuseconv import cli

    size, files, _, _ = socket.recv_fds(caller, 4, 3)
    call = b""
    while len(call) < int.from_bytes(size, "big"):
        call += caller.recv(1 << 16)
    arguments, folder, environment = json.loads(call)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))  # in place of this file's folder
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    caller.sendall(bytes([status]))
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
