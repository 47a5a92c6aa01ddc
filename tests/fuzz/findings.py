"""The findings: one folder each, with everything needed to reproduce it."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something wrong.

    Attributes:
        part: models, rules or files.
        kind: wrong, raises, bug, accepted, touched, crash or hang.
        key: two with one key count as one.
        said: what is wrong, in words.
        options: of the part.
        seed: of the run.
        case: its number.
        text: the minimised model, rule or description, when there is one.
        suffix: of the file that `text` is saved as.
    """

    part: str
    kind: str
    key: str
    said: str
    options: dict[str, Any]
    seed: str
    case: int
    text: str = ""
    suffix: str = ".txt"


class Findings:
    """The findings of a run.

    Args:
        folder: where to save them; made when there is one to save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, finding: Finding) -> None:
        """Saves a finding; of several with one key the first."""
        key = f"{finding.part}: {finding.kind}: {finding.key}"
        with self._lock:
            self.counts[key] += 1
            if self.counts[key] > 1:
                return
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        place = self.folder / f"{finding.part}-{finding.kind}-{digest}"
        place.mkdir(exist_ok=True)
        again = f"--only {finding.part} --seed {finding.seed} --case {finding.case}"
        if finding.options:
            again += f" --options {shlex.quote(json.dumps(finding.options))}"
        lines = [f"found: {finding.key}", finding.said, "", "see it again:", f"  python -m fuzz {again}"]
        if finding.text:
            file = place / f"found{finding.suffix}"
            file.write_text(finding.text)
            if finding.part == "models":
                lines.append(f"  python -m fuzz --replay {file}")
        (place / "README").write_text("\n".join(lines) + "\n")
        print(f"FOUND {key}\n  {place}", file=sys.stderr, flush=True)
