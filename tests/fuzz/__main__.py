"""`python -m fuzz --seconds 600 [--seed S] [--only PART ...]`: searches for errors, and exits 1 if it finds one."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support import ROOT

from .findings import Findings
from .watch import Part, rows, watch

SHARES = {"models": 0.6, "rules": 0.25, "files": 0.15}
"""Of the time, by part."""

LIMITS = {"models": 180.0, "rules": 120.0, "files": 60.0}
"""Seconds after which one case counts as hung; of a model, what minimises it included."""


def main() -> int:
    """Runs the parts asked for and returns the exit status."""
    options = _options()
    if options.replay:
        return _replay(options.replay)
    if options.case is not None:
        return _one(options.only[0], options.seed, options.case, options.options)
    findings = Findings(options.out)
    if options.device != "cpu":
        options.options["device"], options.only = options.device, ["models"]
    chosen = {name: share for name, share in SHARES.items() if name in options.only}
    whole, started, parts = sum(chosen.values()), time.monotonic(), []
    for name, share in chosen.items():
        print(f"fuzz {name}: seed {options.seed}", file=sys.stderr, flush=True)
        part = Part(name, options.seconds * share / whole, LIMITS[name], options.counts, options.options)
        watch(part, options.seed, findings, options.jobs)
        parts.append(part)
    done = {
        "seed": options.seed,
        "device": options.device,
        "torch": version("torch"),
        "seconds": round(time.monotonic() - started),
        "parts": rows(parts),
        "found": dict(findings.counts),
    }
    text = json.dumps(done, indent=1)
    print(text)
    if options.summary:
        options.summary.write_text(text + "\n")
    return 1 if findings.counts else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all parts together")
    parser.add_argument("--counts", type=int, default=10**9, help="cases of a part at most")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda: models alone")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same seed tries the same cases")
    parser.add_argument("--only", nargs="+", choices=sorted(SHARES), default=sorted(SHARES))
    parser.add_argument("--case", type=int, help="one case of the part named by --only, in this process")
    parser.add_argument("--replay", type=Path, help="a model that was saved")
    parser.add_argument("--options", type=json.loads, default={}, help="of a part, as JSON")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="where findings are saved")
    parser.add_argument("--summary", type=Path, help="a JSON file for the counts")
    return parser.parse_args()


def _one(part: str, seed: str, case: int, options: dict[str, Any]) -> int:
    from .worker import make_trier

    trier = make_trier(part, seed, options)
    print(trier.text(case))
    counts, findings = trier.attempt(case)
    print(json.dumps({"counts": counts, "findings": findings}, indent=1))
    return 1 if findings else 0


def _replay(path: Path) -> int:
    from fuseconv.rulebook.rule_file import load_rules

    from .oracle import convert

    outcome = convert(path.read_text(), load_rules("rules/default.json"))
    print(json.dumps(dict(outcome.counts), indent=1))
    print(outcome.said or "nothing is wrong")
    return 1 if outcome.kind else 0


if __name__ == "__main__":
    sys.exit(main())
