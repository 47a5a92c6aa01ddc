"""mkdocs hooks: the rule pages, the op pages and the pages outside of docs/ become pages of the site.

Links in Markdown are written for the repository. Here each leads to the page of its file, or, where the file has none,
to a copy of the file under source/.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "docs" / "site")]

import make_rule_pages  # noqa: E402
import op_pages  # noqa: E402

OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
ELSEWHERE = {"README.md": "index.md", "rules/default.json": "rules/README.md", "docs/rules": "rules/README.md"}
"""Files of the repository that have a page of another name."""

MERMAID = ROOT / "build" / "mermaid" / "package" / "dist" / "mermaid.min.js"
"""Put there by `make docs`. Without it the pages with diagrams load mermaid from a CDN when they are read."""

_generated: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the generated pages, and lists the rule pages in the navigation, by stage."""
    _generated.clear()
    _generated.update({f"rules/{name}": text for name, text in make_rule_pages.pages().items()})
    _generated["api/ops.md"] = op_pages.page()
    for entry in config.nav or []:
        if entry == {"Rules": "rules/README.md"}:
            entry["Rules"] = ["rules/README.md", *_rules_by_stage()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is not in docs/: generated pages, samples, pages of the root, and the files that pages link to."""
    for name, text in _generated.items():
        files.append(File.generated(config, name, content=text))
    pages = [*(ROOT / "samples").rglob("*.md"), *(ROOT / name for name in OUTSIDE)]
    for path in pages:
        files.append(File.generated(config, _relative(path), abs_src_path=str(path)))
    if MERMAID.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    for file in list(files.documentation_pages()):
        for target in _targets(file.content_string):
            path = _resolve(file.src_uri, target)
            if files.get_file_from_path(_uri(path)) is None and (ROOT / path).is_file():
                files.append(File.generated(config, _uri(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Leads each relative link to the site's page of what it names."""

    def led(found: re.Match[str]) -> str:
        target, hash_, anchor = found[2].partition("#")
        if not target or ":" in target:
            return found[0]
        uri = _uri(_resolve(page.file.src_uri, target))
        there = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}{there}{hash_}{anchor})"

    return "".join(line if fenced else _LINK.sub(led, line) for fenced, line in _lines(markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Gives a page with diagrams the site's own copy of mermaid; other pages do not load its three megabytes."""
    if 'class="mermaid"' not in output or not MERMAID.exists():
        return output
    there = posixpath.relpath("assets/mermaid.min.js", page.url or ".")
    return output.replace("</head>", f'<script src="{there}"></script></head>', 1)


_LINK = re.compile(r"(\]\()([^)\s]+)\)")


def _lines(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yields each line, and whether it is code."""
    fence = ""
    for line in markdown.splitlines(keepends=True):
        mark = re.match(r"\s*(`{3,})", line)
        yield bool(fence or mark), line
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1] == fence:
            fence = ""


def _targets(markdown: str) -> Iterator[str]:
    for fenced, line in _lines(markdown):
        if not fenced:
            targets = (found[2].partition("#")[0] for found in _LINK.finditer(line))
            yield from (target for target in targets if target and ":" not in target)


def _resolve(src_uri: str, target: str) -> str:
    """Returns the path in the repository of what a page of the site links to."""
    outside = src_uri in OUTSIDE or src_uri.startswith("samples/")
    folder = posixpath.dirname(src_uri if outside else f"docs/{src_uri}")
    return posixpath.normpath(posixpath.join(folder, target))


def _uri(path: str) -> str:
    """Returns where on the site a file of the repository is."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in OUTSIDE or (path.startswith("samples/") and path.endswith(".md")):
        return path
    return f"source/{path}"


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _rules_by_stage() -> list[Any]:
    rules = make_rule_pages.rules()
    return [
        {stage: [{rule.name: f"rules/{rule.name}.md"} for rule in rules if rule.stage == stage]}
        for stage in make_rule_pages.STAGE_WORDS
    ]
