"""`fuseconv` and `python` in forks of a process that has imported torch and fuseconv.

A page of twenty commands would import torch twenty times. `command` puts programs of these names into a folder. They
hand their arguments, environment, folder and open files to a waiting process; a fork of that runs `cli.main` on them,
or the file, the module or the code that `python` is given.
"""

from __future__ import annotations

import json
import os
import runpy
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
    call = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(call)
    status = server.recv(1)
sys.exit(status[0] if status else "the command died")
"""


@contextmanager
def command(folder: Path) -> Iterator[None]:
    """Writes the programs into the folder, to run while the context is open."""
    address = str(folder / "socket")
    process = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for name in ("fuseconv", "python"):
            program = folder / name
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

        import fuseconv.commands.results
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
    size, files, _, _ = socket.recv_fds(caller, 4, 3)
    call = b""
    while len(call) < int.from_bytes(size, "big"):
        call += caller.recv(1 << 16)
    name, arguments, folder, environment = json.loads(call)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))  # in place of this file's folder
    status = 0
    try:
        if name == "python":
            python(arguments)
        else:
            from fuseconv import cli

            status = cli.main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    sys.stdout.flush()
    sys.stderr.flush()
    caller.sendall(bytes([status]))
    os._exit(status)


def python(arguments: list[str]) -> None:
    """Runs a file, `-m` a module, or `-c` code, as the main program."""
    option = arguments.pop(0) if arguments[0] in {"-c", "-m"} else ""
    first, sys.argv = arguments[0], arguments
    sys.path.insert(0, "" if option else str(Path(first).parent.absolute()))
    if option == "-m":
        runpy.run_module(first, run_name="__main__", alter_sys=True)
    elif option:
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(first, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
