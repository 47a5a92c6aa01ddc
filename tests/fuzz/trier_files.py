"""The part `files`: each case is one damaged or hostile file, which must be rejected with a message, or read."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuseconv.errors import FuseconvError, is_out_of_memory

from . import damage
from .corpus import GROUPS, Seed, corpus, reseal
from .oracle import _words

SLOW = 5.0
"""Seconds of processor time after which a file counts as one that hangs."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Files:
    """Tries damaged files.

    Args:
        seed: of all of them.
        groups: names of what is damaged.
    """

    def __init__(self, seed: str, groups: Collection[str] = tuple(GROUPS)) -> None:
        self.seed = seed
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
        made = self.folder / "made"
        made.mkdir()
        self.seeds = corpus(made, groups)
        self.canary = self.folder / "canary"
        self.canary.mkdir()
        (self.canary / "secret").write_text("a secret")
        self.watch = Watch(self.folder / "case", self.canary)

    def text(self, at: int) -> str:
        """Returns what is done to which file."""
        return self._made(at, self.folder / "case")[1]

    def _made(self, at: int, place: Path) -> tuple[Seed, str]:
        draw = random.Random(f"{self.seed}:{at}")
        seed = draw.choice(self.seeds)
        shutil.rmtree(place, ignore_errors=True)
        for name, data in seed.files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
        name = draw.choice(sorted(seed.files.keys() - seed.left))
        path = place / name
        if draw.random() < 0.04:
            done = f"{name} is now {damage.replaced(path, draw, self.canary)}"
        else:
            data = path.read_bytes()
            how = draw.choice(("random_bytes", "damaged_content", "damaged_content"))
            new = damage.random_bytes(data, draw) if how == "random_bytes" else damage.damaged_content(name, data, draw)
            path.write_bytes(new.replace(damage.CANARY.encode(), str(self.canary).encode()))
            done = f"{name} by {how}"
        if seed.form == "bundle, sealed again":
            reseal(place)
        return seed, f"{seed.form}: {done}"

    def attempt(self, at: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Reads the damaged file of a number."""
        counts: Counter[str] = Counter()
        place = self.folder / "case"
        seed, done = self._made(at, place)
        started, found = time.process_time(), []
        with self.watch.watching():
            try:
                seed.read(place)
                result = "read"
            except FuseconvError as error:
                result = f"refused: {type(error).__name__}"
                if error.code == "internal" or not error.what:
                    found.append(("bug", f"{seed.form}: {_words(error.what)}", str(error)))
            except OSError as error:
                result = f"refused: {type(error).__name__}"  # the command line says it as a FileError
            except RecursionError as error:
                result = "bug"
                found.append(("bug", f"{seed.form}: RecursionError", str(error)))
            except Exception as error:  # noqa: BLE001 - each one is a finding
                result = "out of memory" if is_out_of_memory(error) else "bug"
                if result == "bug":
                    from .oracle import _full, _short

                    found.append(("bug", f"{seed.form}: {_short(error)}", _full(error)))
        seconds = time.process_time() - started
        if seconds > SLOW:
            found.append(("slow", seed.form, f"{seconds:.1f} s of processor time"))
        found += [("touched", f"{seed.form}: {one}", one) for one in self.watch.touched()]
        counts[f"{seed.form}: {result}"] += 1
        counts["files"] += 1
        counts["CPU milliseconds"] += int(1000 * seconds)
        return dict(counts), [
            {"kind": kind, "key": key, "said": f"{done}\n{said}", "text": "", "suffix": ".txt"}
            for kind, key, said in found
        ]


class Watch:
    """Sees which files a reader opens to write, which programs it starts, and whether the canary changes.

    Args:
        place: where a reader may write nothing but may read everything.
        canary: what nobody may touch.
    """

    def __init__(self, place: Path, canary: Path) -> None:
        self.place, self.canary = str(place), canary
        self.seen: list[str] = []
        self.is_on = False
        self.before = self._state()
        sys.dont_write_bytecode = True  # the compiled code of a module, imported late, is no file that a reader writes
        sys.addaudithook(self._hook)

    def _state(self) -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.canary.rglob("*"))
        }

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open":
            path, _, flags = (*arguments, None, None, None)[:3]
            name = os.fsdecode(path) if isinstance(path, str | bytes) else ""
            if str(self.canary) in name:
                self.seen.append("the canary was opened")
            elif name.startswith(("/etc/passwd", "/dev/zero")):
                self.seen.append(f"{name} was opened")
            elif isinstance(flags, int) and flags & _WRITES and not name.startswith(_OWN):
                self.seen.append(f"a file was opened to write: {_words(name)}")
        elif event in ("os.system", "os.exec", "os.posix_spawn", "socket.connect", "shutil.rmtree"):
            if not (event == "shutil.rmtree" and str(arguments[0]).startswith(_OWN)):
                self.seen.append(f"{event} {_words(str(arguments))}")
        elif event == "subprocess.Popen" and str(arguments[0]) != sys.executable:
            self.seen.append(f"{event} {_words(str(arguments))}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches while the context lasts."""
        self.seen.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def touched(self) -> list[str]:
        """Returns what was touched, in words."""
        now = self._state()
        found = list(dict.fromkeys(self.seen))
        if now != self.before:
            found.append("the canary is not what it was")
            self.before = now
        return found


_OWN = (tempfile.gettempdir(), "/dev/null")
"""Where a reader may have scratch files of its own."""
