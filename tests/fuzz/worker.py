"""The child of the watchdog: `python -m fuzz.worker PART SEED FIRST LAST STEP OPTIONS` runs cases and reports each."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any


def main() -> None:
    """Tries the cases that the command line names; each line of stdout is one JSON object."""
    part, seed, first, last, step, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    warnings.simplefilter("ignore")
    trier = make_trier(part, seed, json.loads(options))
    for at in range(int(first), int(last), int(step)):
        print(json.dumps({"start": at}), file=answers)
        counts, findings = trier.attempt(at)
        print(json.dumps({"done": at, "counts": counts, "findings": findings}), file=answers)


def make_trier(part: str, seed: str, options: dict[str, Any]) -> Any:
    """Returns what tries the cases of a part."""
    if part == "models":
        from .trier_models import Models

        return Models(seed, **options)
    if part == "rules":
        from .trier_rules import Rules

        return Rules(seed, **options)
    from .trier_files import Files

    return Files(seed, **options)


if __name__ == "__main__":
    main()
