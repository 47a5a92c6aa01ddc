"""A small hub: the requests of huggingface_hub.snapshot_download, answered over HTTP from folders on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""The only commit of each repository."""


@dataclass
class Hub:
    """Repositories by name, and what was asked.

    Attributes:
        repositories: maps `OWNER/NAME` to the folder of its files.
        gated: the repositories to which access is refused.
        cut: the names of files of which only half is sent before the connection is closed.
        revisions: the branches and tags, which are names of `COMMIT`.
        asked: the paths of the files that were sent, in order.
        url: the address of the server.
    """

    repositories: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    revisions: tuple[str, ...] = ("main", "v1")
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves a hub on a free port of this machine within the block."""
    handler: Callable[..., Any] = lambda *given: _Handler(hub, *given)  # noqa: E731 - a handler with the hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *given: Any) -> None:
        self.hub = hub
        super().__init__(*given)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._refuse(404, "EntryNotFound")

    def _api(self, name: str, rest: list[str]) -> None:
        """Answers what a revision is, and which files it has."""
        if (folder := self._folder(name, rest[1] if rest else "main")) is None:
            return
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        if rest[:1] == ["tree"]:
            self._json([_listed(path, folder) for path in paths])
        else:
            files = [{"rfilename": path.relative_to(folder).as_posix()} for path in paths]
            self._json({"id": name, "sha": COMMIT, "siblings": files, "private": False, "tags": []})

    def _folder(self, name: str, revision: str) -> Path | None:
        if name not in self.hub.repositories:
            self._refuse(401, "RepoNotFound")
        elif name in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif revision not in (COMMIT, *self.hub.revisions):
            self._refuse(404, "RevisionNotFound")
        else:
            return self.hub.repositories[name]
        return None

    def _file(self, name: str, revision: str, file: str) -> None:
        if (folder := self._folder(name, revision)) is None:
            return
        path = folder / file
        data = path.read_bytes()
        start = 0
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.asked.append(file)
        if file in self.hub.cut:
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _listed(path: Path, folder: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {
        "type": "file",
        "path": path.relative_to(folder).as_posix(),
        "size": len(data),
        "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
    }
