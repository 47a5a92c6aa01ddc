"""Rule files: what is read, what is rejected, at which position, and in what time."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fuseconv.errors import RuleError
from fuseconv.matching.lock import read_lock
from fuseconv.matching.steps import read_plan
from fuseconv.rulebook.entry import schema
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_file import load_rules
from fuseconv.rulebook.rule_text import RuleTextError, parse_condition, parse_line

RULE = {
    "name": "linear-gelu",
    "stage": "fuse",
    "doc": "Linear followed by GELU.",
    "match": ["h = aten.linear.default(x, w, b)", "y = aten.gelu.default(h, approximate=mode)"],
    "where": ["dtype(x) in f16 bf16 f32"],
    "replace": ["y = fuseconv.linear_act.default(x, w, b, act=gelu_of(mode))"],
}


def file_with(**changes: Any) -> str:
    return json.dumps({"rules": [{**RULE, **changes}]}, indent=1)


MATCH = RULE["match"]

BAD_FILES = {
    # name: (text of the file, part of the message, pointer)
    "not_json": ("hello", "not JSON", "(/)"),
    "empty": ("", "not JSON", "(/)"),
    "byte_order_mark": ("\ufeff{}", "byte order mark", "(/)"),
    "duplicate_key": ('{"rules": [],\n "rules": []}', "the key is given twice", ":2:2 (/rules)"),
    "nan": ('{"rules": [NaN]}', "not JSON", "(/rules/0)"),
    "infinity": ('{"rules": [-Infinity]}', "not JSON", "(/rules/0)"),
    "huge_number": ('{"rules": [1e999]}', "too large", "(/rules/0)"),
    "depth": ("[" * 100_000, "nested deeper", "/0/0"),
    "text_after": ("{} {}", "text after", ":1:4"),
    "bad_escape": ('{"\\x": 1}', "escape", ":1:3"),
    "no_rules": ("{}", "contains no rules", ":1:1 (/)"),
    "empty_rules": ('{"rules": [], "include": []}', "contains no rules", ":1:1 (/)"),
    "not_an_object": ("[]", "must be a JSON object", ":1:1"),
    "unknown_top_field": ('{"rule": []}', "unknown field rule", "(/rule)"),
    "unknown_field": (file_with(wher=[]), "unknown field wher", "(/rules/0/wher)"),
    "missing_field": ('{"rules": [{"name": "a", "doc": "d"}]}', "the field stage is missing", "(/rules/0/stage)"),
    "unknown_stage": (file_with(stage="last"), "canonical", "(/rules/0/stage)"),
    "bad_name": (file_with(name="Linear Gelu"), "pattern", "(/rules/0/name)"),
    "line_is_a_number": (file_with(match=[1]), "string", "(/rules/0/match/0)"),
    "empty_match": (file_with(match=[]), "the rule has no pattern", "(/rules/0/match)"),
    "unknown_predicate": (file_with(where=["dtyp(x) == f32"]), "dtyp", "(/rules/0/where/0)"),
    "predicate_arity": (file_with(where=["rank(x, w) == 2"]), "2 arguments", "(/rules/0/where/0)"),
    "predicate_uncompared": (file_with(where=["rank(x)"]), "is a value", "(/rules/0/where/0)"),
    "predicate_compared": (file_with(where=["is_floating(x) == True"]), "is a test", "(/rules/0/where/0)"),
    "predicate_unbound": (file_with(where=["rank(q) == 2"]), "q is not bound", "(/rules/0/where/0)"),
    "code_in_where": (file_with(where=["__import__('os').system('x')"]), "cannot be an argument", "(/rules/0/where/0)"),
    "code_in_match": (file_with(match=["y = __import__('os').getcwd()"]), "three parts", "(/rules/0/match/0)"),
    "code_in_replace": (file_with(replace=["y = (lambda: 1)()"]), "three parts", "(/rules/0/replace/0)"),
    "function_in_match": (
        file_with(match=["y = aten.gelu.default(x, approximate=gelu_of(mode))"], where=[], replace=[]),
        "cannot be nested in an op",
        "(/rules/0/match/0)",
    ),
    "unbound": (file_with(replace=["y = aten.gelu.default(q)"]), "q is not bound", "(/rules/0/replace/0)"),
    "bound_twice": (file_with(match=["y = aten.a.b(x)", "y = aten.a.b(x)"]), "y is bound twice", "(/rules/0/match/1)"),
    "cycle": (file_with(match=["h = aten.a.b(y)", "y = aten.a.b(h)"]), "y is used before", "(/rules/0/match/0)"),
    "self_cycle": (file_with(match=["y = aten.a.b(y)"]), "y is used before", "(/rules/0/match/0)"),
    "replaces_nothing": (
        file_with(replace=[*RULE["replace"], "z = aten.gelu.default(x)"]),
        "z replaces nothing",
        "(/rules/0/replace/1)",
    ),
    "not_replaced": (
        file_with(match=[*MATCH, "z = aten.relu.default(h)"]),
        "z is bound, but neither read nor replaced",
        "(/rules/0/match/2)",
    ),
    "reads_inside": (file_with(replace=["y = aten.gelu.default(h)"]), "inside the match", "(/rules/0/replace/0)"),
    "function_of_a_new_value": (
        file_with(replace=["h: constant = aten.relu.default(w)", "y = aten.view.default(x, [size(h, 0)])"]),
        "size cannot use h",
        "(/rules/0/replace/1)",
    ),
    "unconnected": (file_with(match=[*MATCH, "_ = aten.relu.default(q)"]), "shares no value", "(/rules/0/match/"),
    "rest_in_replace": (
        file_with(replace=["y = aten.gelu.default(x, ...)"]),
        "not allowed in `replace`",
        "(/rules/0/replace/0)",
    ),
    "second_alternative": (
        file_with(match=[MATCH, ["y = aten.gelu"]]),
        "cannot be an argument",
        "(/rules/0/match/1/0)",
    ),
    "equality_elsewhere": (file_with(equality=True), "must belong to the stage search", "(/rules/0/equality)"),
    "equality_of_alternatives": (
        file_with(
            equality=True,
            stage="search",
            match=[["y = aten.relu.default(x)"], ["y = aten.gelu.default(x)"]],
            where=[],
            replace=["y = aten.relu.default(x)"],
        ),
        "alternatives",
        "/match)",
    ),
    "equality_of_constants": (
        file_with(equality=True, stage="search", replace=["y: constant = aten.t.default(w)"]),
        "cannot be matched",
        "(/rules/0/replace/0)",
    ),
    "reversed_rule": (
        file_with(equality=True, stage="search", replace=["y = aten.relu.default(x)"]),
        "w",
        "(/rules/0/match/0)",
    ),
    "merge_in_search": (file_with(stage="search", merge=["x"]), "`merge`", "(/rules/0/stage)"),
    "product_in_search": (
        file_with(stage="search", match=["y = product(x, w)"], where=[], replace=["y = aten.mul.Tensor(x, w)"]),
        "product",
        "(/rules/0/match/0)",
    ),
    "missing_include": ('{"include": ["nowhere.json"]}', "there is no rule file nowhere.json", "(/include/0)"),
    "include_of_itself": ('{"include": ["rules.json"]}', "form a cycle", "(/include/0)"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    text, what, pointer = BAD_FILES[name]
    path = tmp_path / "rules.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError) as caught:
        load_rules(path)
    assert what in caught.value.what
    assert str(path) in caught.value.where
    assert pointer in caught.value.where
    assert caught.value.fix
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("name", ["default", "rules/nowhere.json"])
def test_a_missing_file_is_said_to_be_needed_for_own_rules_only(name: str) -> None:
    with pytest.raises(RuleError, match=f"there is no rule file {Path(name).name}") as caught:
        load_rules(name)
    assert caught.value.fix == f"create {name}, or correct the name; if you name no rules, fuseconv uses its own"


def test_a_line_in_an_error_counts_characters_into_the_string(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(file_with(match=[MATCH, ["y = aten.gelu.default(x"]]))
    with pytest.raises(RuleError) as caught:
        load_rules(path)
    line, column = map(int, caught.value.where.removeprefix(f"{path}:").split(" ")[0].split(":"))
    assert path.read_text().splitlines()[line - 1][column - 1] == "("


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    tracemalloc.start()
    with pytest.raises(RuleError, match="larger than"):
        load_rules(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_bytes(b'{"rules":\n "\xff"}')
    with pytest.raises(RuleError, match="not UTF-8") as caught:
        load_rules(path)
    assert ":2:" in caught.value.where


def test_include_order_folders_and_diamonds(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    for name in ("b", "a"):
        (tmp_path / "part" / f"{name}.json").write_text(file_with(name=name))
    (tmp_path / "part" / "schema.json").write_text("{}")
    (tmp_path / "top.json").write_text(
        json.dumps({"include": ["part", "part/a.json", "part/../part/b.json"], "rules": [{**RULE, "name": "c"}]})
    )
    assert [rule.name for rule in load_rules(tmp_path / "top.json")] == ["a", "b", "c"]
    assert [rule.name for rule in load_rules(tmp_path / "part")] == ["a", "b"]


def test_two_rules_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(file_with())
    with pytest.raises(RuleError, match="two rules have the name linear-gelu") as caught:
        load_rules(tmp_path)
    assert "b.json" in caught.value.where
    assert "a.json" in caught.value.fix


NO_RULES: dict[str, tuple[str | bytes, str, str]] = {
    "text": ("SECRET x", "not JSON: a value is missing", ":1:1"),
    "text in JSON": ('{"rules":\n  SECRET}', "not JSON: a value is missing", ":2:3"),
    "a key": ('{"SECRET": x}', "not JSON: a value is missing", ":1:12"),
    "a key twice": ('{"SECRET": 1, "SECRET": 1}', "not JSON: the key is given twice", ":1:15"),
    "a number": ("5373e999", "not JSON: the number is too large", ":1:9"),
    "an escape": ('"\\SECRET"', "not JSON: a string is not terminated", ":1:2"),
    "a comma": ('{"SECRET": 1 "SECRET": 1}', "not JSON: a ',' or '}' is missing", ":1:14"),
    "other JSON": ('{"SECRET": 1}', "the included file is not a rule file", ""),
    "a string": ('"SECRET"', "the included file is not a rule file", ""),
    "bytes": (b"SECRET\n\xff\xfe", "byte 7 is not UTF-8", ":2:1 (/)"),
}


@pytest.mark.parametrize("name", NO_RULES)
def test_of_an_included_file_that_is_none_nothing_is_shown(tmp_path: Path, name: str) -> None:
    text, what, place = NO_RULES[name]
    (tmp_path / "private").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "rules.json").write_text('{"include": ["private"]}')
    with pytest.raises(RuleError) as caught:
        load_rules(tmp_path / "rules.json")
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path / 'private'}{place}"
    assert not any(part in str(caught.value) for part in ("SECRET", "secret", "5373", "xff"))


@pytest.mark.parametrize("text", ["SECRET", '{"rules": SECRET}', "5373e999", '{"a": "\\SECRET"}'])
def test_of_a_file_that_is_no_json_no_text_is_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.json").write_text(text)
    for read in (load_rules, read_lock, read_plan):
        with pytest.raises(RuleError) as caught:
            read(tmp_path / "rules.json")
        assert not any(part in str(caught.value).lower() for part in ("secret", "5373"))


def test_a_chain_of_includes_is_bounded(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.json").write_text(json.dumps({"include": [f"{number + 1}.json"]}))
    with pytest.raises(RuleError, match="nested deeper"):
        load_rules(tmp_path / "0.json")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no rule file"):
        load_rules(tmp_path)


def test_the_hash_is_of_what_a_rule_does() -> None:
    rule = Rule.model_validate(RULE)
    assert rule.sha256 == Rule.model_validate({**RULE, "doc": "Other words."}).sha256
    assert rule.sha256 != Rule.model_validate({**RULE, "where": []}).sha256
    assert rule.results == ("y",)


def test_a_rule_made_in_memory_is_checked() -> None:
    with pytest.raises(ValidationError, match="q is not bound"):
        Rule.model_validate({**RULE, "replace": ["y = aten.gelu.default(q)"]})


def test_the_schema_is_current() -> None:
    assert Path("rules/schema.json").read_text() == schema(), "write rules/schema.json anew from fuseconv.rule.schema()"


def test_our_rules_are_included_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"include": ["rules/default.json"], "rules": []}')
    found = [rule.sha256 for rule in load_rules(tmp_path / "mine.json")]
    assert found == [rule.sha256 for rule in load_rules("rules/default.json")]


def test_reading_rules_imports_no_torch() -> None:
    read = "from fuseconv.rulebook.rule_file import load_rules; load_rules('rules/default.json')"
    code = f"import sys; {read}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize(
    "text",
    [
        "a + b",
        "y = a + b",
        "y = x[0]",
        "y = aten.gelu.default(*x)",
        "y = aten.gelu.default(**x)",
        "y = aten.gelu.default(x, x=1, x=2)",
        "y = aten.gelu.default(..., x)",
        "y = aten.gelu.default(f'{x}')",
        "y = aten.gelu.default(x if x else x)",
        "y = aten.gelu.default([i for i in x])",
        "y = aten.gelu(x)",
        "y = a.b.c.d(x)",
        "y.z = aten.gelu.default(x)",
        "f32 = aten.gelu.default(x)",
        "y = z = aten.gelu.default(x)",
        "y = aten.gelu.default(x); z = 1",
        "y = aten.gelu.default(b'x')",
        "y = aten.gelu.default(1j)",
        "y = aten.gelu.default(-'x')",
        "y = aten.gelu.default(-True)",
        "y = aten.gelu.default('\\x41')",
        "y = aten.gelu.default(é)",
        "y = " + "(" * 300,
        "y = " + "-" * 390 + "1",
        "y = aten.gelu.default(" + "x, " * 200 + ")",
        "",
        "import os",
        "y := 1",
    ],
)
def test_what_is_no_line(text: str) -> None:
    with pytest.raises(RuleTextError):
        parse_line(text)


@pytest.mark.parametrize(
    "text", ["x", "x.y", "rank(x) == 2 == 2", "rank(x) in 2 + 1", "rank(x) in y", "1 < rank(x)", "not rank(x)", ""]
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(RuleTextError):
        parse_condition(text)
