"""Reports in Chromium: what a reader sees and presses, by mouse and by keyboard, wide and narrow, light and dark.

    pip install -c constraints.txt playwright axe-playwright-python
    python -m pytest -m browser tests/browser

CHROMIUM names the program; by default it is searched on the PATH. Without `-m browser` these are not collected.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support import ROOT

from fuseconv import cli
from fuseconv.matching.steps import Miss
from fuseconv.report.described import describe
from fuseconv.report.page import Report, write

pytestmark = pytest.mark.browser

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
SERIOUS = ("serious", "critical")
LAYERS = 24

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium on the PATH: install it, or set CHROMIUM"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def one(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of one bundle, with errors."""
    output = tmp_path_factory.mktemp("one") / "report.html"
    bundle, model = str(converted / "model.fuseconv"), str(converted / "model.pt2")
    assert cli.main(["report", bundle, "--against", model, "-o", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def two(converted: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two bundles."""
    output = tmp_path_factory.mktemp("two") / "report.html"
    assert cli.main(["report", str(converted / "model.fuseconv"), str(bundle), "-o", str(output)]) == 0
    return output


@pytest.fixture
def open_report(browser: Browser) -> Iterator[Open]:
    """Opens a report, without a network; at the end no error was printed and nothing was asked for."""
    wrong: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1280, **settings: Any) -> Page:
        own = (path.as_uri(), "blob:")  # the page, and the worker inside of it
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(own) else None)
        page.goto(path.as_uri())
        page.wait_for_selector(".canvas svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in SERIOUS]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("report", ["one", "two"])
def test_accessible_at_every_width_and_scheme(
    report: str, width: int, scheme: str, open_report: Open, request: pytest.FixtureRequest
) -> None:
    page = open_report(request.getfixturevalue(report), width, color_scheme=scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page) == []
    page.locator(".box.stage").first.click()
    expect(page.locator(".detail .match").first).to_be_visible()
    assert violations(page) == []


def test_a_match_is_shown_before_and_after(one: Path, open_report: Open) -> None:
    page = open_report(one)
    row = page.locator("#matches tbody tr", has_text="linear-act").first
    row.locator("summary").click()
    row.locator("button").first.click()
    expect(page.locator(".box.selected")).not_to_have_count(0)
    detail = page.locator(".detail")
    expect(detail).to_contain_text("fuseconv.linear_act.default")
    expect(detail).to_contain_text("planted.py")
    expect(detail).to_contain_text("sets of adversarial values")
    page.locator(".switch button", has_text="fused").click()
    expect(page.locator(".box.selected")).to_have_count(1)
    expect(page.locator(".box.selected")).to_contain_text("linear_act")


def test_a_fused_graph_that_is_drawn_from_the_plan(converted: Path, tmp_path: Path, open_report: Open) -> None:
    bundle, report = tmp_path / "scripted.fuseconv", tmp_path / "report.html"
    model = ["convert", str(converted / "model.pt2"), "--target", "torchscript", "-q", "-o", str(bundle)]
    assert cli.main(model) == 0
    assert cli.main(["report", str(bundle), "-o", str(report)]) == 0
    page = open_report(report)
    expect(page.locator("#graph")).to_contain_text("drawn from the plan, as it is for the target torchscript")
    expect(page.locator("#growth")).to_contain_text("fuseconv report scripted.fuseconv --against model.pt2")
    page.locator(".switch button", has_text="fused").click()
    page.get_by_role("button", name="Open all").click()
    page.locator(".box", has_text="linear_act").first.click()
    expect(page.locator(".detail")).to_contain_text("act = tanh")
    assert violations(page) == []


def test_the_graph_by_keyboard(one: Path, open_report: Open) -> None:
    page = open_report(one)
    page.get_by_role("button", name="Close all").click()
    box = page.locator(".box.module").first
    expect(box).to_have_attribute("aria-expanded", "false")
    count = page.locator(".box").count()
    page.locator('.box[tabindex="0"]').focus()
    for _ in range(20):
        if page.evaluate("document.activeElement.classList.contains('module')"):
            break
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".box.open")).to_have_count(1)
    assert page.locator(".box").count() > count
    assert page.evaluate("document.activeElement.classList.contains('open')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".detail h3")).to_be_visible()


def test_errors_lead_to_the_graph(one: Path, open_report: Open) -> None:
    page = open_report(one)
    page.locator("#growth summary").click()
    page.locator("#growth tbody button").first.click()
    expect(page.locator(".box.selected")).to_have_count(1)
    page.locator(".chart").hover()
    expect(page.locator(".readout")).to_contain_text("fused")


def test_print_has_no_controls(one: Path, open_report: Open) -> None:
    page = open_report(one)
    page.emulate_media(media="print")
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator(".tools")).to_be_hidden()
    assert page.pdf().startswith(b"%PDF")


HOSTILE = "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"


def test_text_of_a_bundle_is_not_run(converted: Path, tmp_path: Path, open_report: Open) -> None:
    described = describe(converted / "model.fuseconv")
    assert described.captured is not None
    nodes = [replace(node, op=HOSTILE, arguments=(HOSTILE,)) for node in described.captured.nodes]
    captured = replace(described.captured, nodes=tuple(nodes))
    miss = Miss(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    changed = replace(described, name=HOSTILE, captured=captured, misses=(miss,))
    write(Report("0", (changed,)), tmp_path / "report.html")
    page = open_report(tmp_path / "report.html")
    page.locator(".box.op").first.click()
    expect(page.locator(".detail h3")).to_contain_text("onerror")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.title().endswith("fuseconv report")


def save_encoder(folder: Path) -> list[str]:
    """A BERT encoder of 24 layers."""
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    transformers.BertModel(config).eval().save_pretrained(folder / "model")
    return ["convert", str(folder / "model"), "--target", "export"]


def save_resnet(folder: Path) -> list[str]:
    """ResNet-50 with random weights."""
    model = transformers.ResNetModel(transformers.ResNetConfig()).eval()
    torch.export.save(torch.export.export(model, (torch.randn(1, 3, 64, 64),)), folder / "model.pt2")
    return ["convert", str(folder / "model.pt2"), "--target", "export"]


MODELS: dict[str, Callable[[Path], list[str]]] = {
    "demo": lambda _: ["demo"],
    "resnet-50": save_resnet,
    "encoder": save_encoder,
}
"""The arguments of the command that makes a bundle of a model, which is saved in a folder first."""


@pytest.fixture(scope="module")
def reports() -> Callable[[str], Path]:
    """Makes the report of a model of MODELS once, in build/reports, where it is kept."""

    @functools.cache
    def make(name: str) -> Path:
        folder = ROOT / "build" / "reports" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        bundle, output = str(folder / "model.fuseconv"), folder / "report.html"
        assert cli.main([*MODELS[name](folder), "-o", bundle]) == 0
        assert cli.main(["report", bundle, "-o", str(output)]) == 0
        return output

    return make


@pytest.mark.parametrize("name", MODELS)
def test_reports_of_real_models(name: str, reports: Callable[[str], Path], open_report: Open) -> None:
    report = reports(name)
    assert report.stat().st_size < 5_000_000
    page = open_report(report)
    assert page.locator("#matches tbody tr").count() > 0
    assert page.locator("#parity tbody tr").count() > 0
    assert violations(page) == []
    page.screenshot(path=report.with_name("report.png"), full_page=True)


def test_24_layers_are_usable_within_two_seconds(reports: Callable[[str], Path], open_report: Open) -> None:
    page = open_report(reports("encoder"))
    assert page.evaluate("performance.now()") < 2000
    few = page.locator(".box.op").count()
    page.get_by_role("button", name="Open all").click()
    expect(page.locator(".box", has_text="gelu")).to_have_count(LAYERS, timeout=20_000)
    assert page.locator(".box.op").count() > few
