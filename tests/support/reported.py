"""What tests of reports share: the page without its script, and the data in a written report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support import ROOT

SOURCE = ROOT / "fuseconv" / "report" / "frontend" / "src" / "page.html"
"""The page before npm puts the script and the style into it: what is needed to test the data, without npm."""

_DATA = re.compile(rb'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(report: Path | bytes) -> dict[str, Any]:
    """Returns the data of a report as a browser finds it: up to the first end of the element."""
    (found,) = _DATA.findall(report if isinstance(report, bytes) else report.read_bytes())
    value: dict[str, Any] = json.loads(found)
    return value
