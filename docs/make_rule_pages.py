"""A page and a picture for each rule of rules/default.json, and the index of them: docs/rules of the built site.

`make docs` builds the site. To look at the pages alone: python docs/make_rule_pages.py build/rules
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graph_picture import Box, Graph, picture

from fuseconv.matching.graph import find_op, is_getitem, op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.proof.example import example_program
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_file import load_rules
from fuseconv.rulebook.rule_text import (
    PRODUCT,
    Apply,
    Call,
    Condition,
    Each,
    Items,
    Line,
    Name,
    Term,
    applications_of,
    parse_line,
    terms_of,
    written,
)

ROOT = Path(__file__).resolve().parent.parent

STAGE_WORDS = {
    "canonical": "one spelling for each thing, to a fixpoint",
    "structure": "what the graph as a whole allows",
    "fuse": "one kernel for several ops",
    "search": "other forms, of which `convert --search` takes the fastest",
}


def rules() -> Sequence[Rule]:
    """Returns the rules that have a page, in the order they are tried."""
    return load_rules(ROOT / "rules" / "default.json")


def pages() -> dict[str, str]:
    """Returns every file of docs/rules: name to text."""
    known = rules()
    made: dict[str, str] = {"README.md": _index(known)}
    for rule in known:
        made[f"{rule.name}.md"] = _page(rule, known, f"rules/{rule.family}.json")
        made[f"{rule.name}.svg"] = picture(_graphs(rule))
    return made


def _index(rules: Sequence[Rule]) -> str:
    lines = [
        "# The rules",
        "",
        f"The {len(rules)} rules of `rules/default.json`, in the order they are tried. How to write one",
        "is in [writing rules](../writing-rules.md).",
    ]
    for stage, words in STAGE_WORDS.items():
        lines += ["", f"## {stage}: {words}", "", "| rule | finds |", "|---|---|"]
        lines += [f"| [{rule.name}]({rule.name}.md) | {rule.doc} |" for rule in rules if rule.stage == stage]
    return "\n".join(lines) + "\n"


def _page(rule: Rule, rules: Sequence[Rule], file: str) -> str:
    place = f"Stage {rule.stage}, in [{file}](../../{file}). [All rules](README.md)"
    lines = [f"# {rule.name}", "", rule.doc, "", place, "", f"![before and after]({rule.name}.svg)", *_matches(rule)]
    limits = [f"only for {', '.join(some)}" for some in (rule.targets, rule.devices) if some]
    if rule.allow:
        limits.append(f"only with `--allow {rule.allow}`")
    if limits:
        lines += ["", f"Applied {'; '.join(limits)}."]
    if rule.draws == "any":
        lines += ["", "What is drawn at random afterwards has the same distribution, but is not the same."]
    if rule.where:
        pairs = zip(rule.where, rule.conditions, strict=True)
        lines += ["", "## Conditions", "", *(f"- `{text}`{_meaning(condition)}" for text, condition in pairs)]
    if rule.replace:
        lines += ["", "## In its place", "", "```", *rule.replace, "```"]
    if rule.examples.hit:
        lines += ["", "## An example", "", "```", *rule.examples.hit[0], "```"]
    if rule.examples.miss:
        lines += [
            "",
            "Left alone:",
            "",
            *(f"- {reason}" for reason in dict.fromkeys(_reason(miss.reason) for miss in rule.examples.miss)),
        ]
    searched = [other for other in rules if (other.stage == "search") == (rule.stage == "search")]
    makes, reads, others = _ops(rule.replacement), _read(rule), [other for other in searched if other is not rule]
    before = [other for other in others if other.stage != "fuse" and _ops(other.replacement) & reads]
    after = [other for other in others if makes & _read(other)]
    for title, related in (("Spellings that reduce to it", before), ("What reads its result", after)):
        if related:
            links = ", ".join(f"[{other.name}]({other.name}.md)" for other in related)
            lines += ["", f"## {title}", "", textwrap.fill(links, 120, break_long_words=False, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def _matches(rule: Rule) -> list[str]:
    texts = list(rule.texts)
    if not texts:
        return ["", f"It is looked for in the graph as a whole: `finds` {rule.finds}."]
    title = "## Matches" if len(texts) == 1 else f"## Matches any of {len(texts)}"
    lines = ["", title, "", "```"]
    for number, some in enumerate(texts):
        lines += ["", *some] if number else list(some)
    return [*lines, "```"]


def _meaning(condition: Condition) -> str:
    found = next(applications_of(condition.left), None)
    return f": {FUNCTIONS[found.function].doc.partition(': `')[0].rstrip('.')}." if found else ""


def _reason(reason: str) -> str:
    """Returns a part of a miss's reason as the page says it."""
    return f"`{reason}`" if re.search(r"[()_=.]", reason) else reason


def _read(rule: Rule) -> set[str]:
    return _ops(line for lines in rule.alternatives for line in lines)


def _ops(lines: Iterable[Line]) -> set[str]:
    return {line.value.op for line in lines if isinstance(line.value, Call)} - {PRODUCT}


def _graphs(rule: Rule) -> list[Graph]:
    if rule.match:
        proved = [
            one.left for one in rule.conditions if isinstance(one.left, Apply) and one.left.function == "is_parameter"
        ]
        computed = [line.value for line in rule.replacement if line.constant]
        parameters = {term.id for left in proved for term in left.args if isinstance(term, Name)}
        constants = {term.id for value in computed for term in terms_of(value) if isinstance(term, Name)}
        words = ((line.targets[0], line.value) for line in rule.alternatives[0] if not isinstance(line.value, Call))
        literals = {name: _written(term) for name, term in words}
        return [
            _graph("before", rule.alternatives[0], rule.results, parameters | constants, literals),
            _graph("after", rule.replacement, rule.results, parameters, literals),
        ]
    text = rule.examples.hit[0]
    program = example_program(text)
    fused = rewrite(program, plan(program, [rule], device="cpu", targets=()))
    pair = (("before", program), ("after", fused))
    return [_graph(title, list(_lines(one)), _returned(one), set(), {}) for title, one in pair]


def _lines(program: Any) -> Iterator[Line]:
    """Yields the ops of a captured program as lines."""
    for node in program.exported.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            yield parse_line(f"{node.name} = {op_name(node.target)}({', '.join(map(str, node.args))})")


def _returned(program: Any) -> list[str]:
    return [str(node) for node in program.exported.graph.output_node().args[0]]


def _graph(
    title: str, lines: Sequence[Line], results: Sequence[str], parameters: set[str], literals: Mapping[str, str]
) -> Graph:
    """Returns the graph of some lines: a box an op, a box a capture, a box a result."""
    graph, made = Graph(title), dict[str, str]()
    for number, line in enumerate(lines):
        if line.constant:
            made[line.targets[0]] = f"constant {line.targets[0]}"
        elif isinstance(line.value, Call):
            operands, words = _arguments(line.value, literals)
            kind = "fused" if line.value.op.startswith("fuseconv.") else "op"
            name = f"op {number}"
            graph.boxes[name] = Box(kind, [_title(line.value.op), *textwrap.wrap(", ".join(words), 30)[:3]])
            sources = (_source(graph, operand, made, parameters, lines) for operand in operands)
            graph.edges += [(source, name) for source in dict.fromkeys(sources)]
            made.update((target, name) for target in line.targets if target != "_")
        elif isinstance(line.value, Name) and (line.value.id in made or line.targets[0] in results):
            made[line.targets[0]] = _source(graph, line.value.id, made, parameters, lines)
    for result in results:
        if result in made or not lines:
            graph.boxes[f"result {result}"] = Box("output", [result])
            source = _source(graph, result, made, parameters, lines)
            graph.edges.append((source, f"result {result}"))
    if not graph.boxes:
        graph.boxes["nothing"] = Box("output", ["nothing"])
    return graph


def _source(graph: Graph, name: str, made: Mapping[str, str], parameters: set[str], lines: Sequence[Line]) -> str:
    """Returns the box that a value comes from; a capture gets one when it is first read."""
    box = made.get(name, f"capture {name}")
    if box not in graph.boxes:
        line = next((line for line in lines if line.constant and line.targets[0] == name), None)
        kind = "constant" if line else "parameter" if name in parameters else "input"
        roots = textwrap.wrap(f"of {', '.join(_roots(name, lines))}", 24) if line else []
        graph.boxes[box] = Box(kind, [name, *roots])
    return box


def _roots(name: str, lines: Sequence[Line]) -> list[str]:
    """Returns the captures that a constant is computed from, in the order they are read."""
    line = next((line for line in lines if line.constant and line.targets[0] == name), None)
    if line is None or not isinstance(line.value, Call):
        return [name]
    operands, _ = _arguments(line.value, {})
    return list(dict.fromkeys(root for operand in operands for root in _roots(operand, lines)))


def _title(op: str) -> str:
    return "multiply" if op == PRODUCT else ".".join(op.split(".")[:2]).removeprefix("aten.")


def _arguments(call: Call, literals: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Returns the tensors that a call reads, and its other arguments as words; `literals` says what names stand for."""
    if call.op == PRODUCT:
        factors = [term.id for term in call.args if isinstance(term, Name)]
        repeated = factors if len(set(factors)) < len(factors) else []
        numbers = [
            _written(term) for term in (*call.args, *(term for _, term in call.kwargs)) if _written(term) not in factors
        ]
        return factors, [" * ".join([*repeated, *numbers])]
    schema = find_op(call.op)._schema.arguments
    named = {argument.name: argument for argument in schema}
    pairs = [*zip(schema, call.args, strict=False), *((named[name], term) for name, term in call.kwargs)]
    tensors: list[str] = []
    words: list[str] = []
    for argument, term in pairs:
        names = [inner.id for inner in _direct(term) if isinstance(inner, Name) and inner.id not in {"_", *literals}]
        text = literals.get(_written(term), _written(term))
        if "Tensor" in str(argument.type) and names:
            tensors += names
        elif text not in {"_", "None"}:
            words.append(text if text == argument.name else f"{argument.name}={text}")
    return tensors, words


def _direct(term: Term) -> Iterator[Term]:
    """Yields a term, or the members of a list."""
    if isinstance(term, Items):
        for item in term.items:
            yield item.term if isinstance(item, Each) else item
    else:
        yield term


def _written(term: Term) -> str:
    """Returns a term as a rule writes it."""
    return written(Line(("y",), False, term)).partition(" = ")[2]


def main() -> int:
    """Writes the pages into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
