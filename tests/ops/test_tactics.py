"""The measured tactics as the op libraries keep them: csrc/tuning, compiled with a program that asks it."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from support import ROOT

from fuseconv.runtime import cpp, tactics
from fuseconv.runtime.few_kernels import Problems

PROGRAM = r"""
#include <cstdlib>
#include <iostream>
#include <locale>
#include "tuning/process.h"

using namespace fuseconv::tuning;

struct German : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// WORD FAMILY SIZE ...: measured and expected print the names in order; put measures a and b; may prints may_time();
// run runs FAMILY in a shell; german changes the locale.
int main(int count, char** words) {
  try {
    for (int at = 1; at + 2 < count + 1 && at < count; at += 3) {
      const std::string word = words[at], family = words[at + 1];
      const int64_t size = std::atoll(words[at + 2]);
      if (word == "run") {
        if (std::system(family.c_str()) != 0) {
          return 2;
        }
        continue;
      }
      if (word == "german") {
        std::locale::global(std::locale(std::locale(), new German));
        continue;
      }
      ProcessTactics& known = ProcessTactics::get();
      if (word == "may") {
        std::cout << (may_time() ? "on" : "off") << "\n";
        check_known(family, size);
      } else if (word == "put") {
        known.put(family, size, {{"b", 3.0, 0.01}, {"a \"quoted\"", 2.0, 0.02}, {"slow", 30.0, 0.0}});
      } else {
        for (const Tactic& tactic : word == "measured" ? known.measured(family, size) : known.expected(family, size)) {
          std::cout << tactic.name << ' ' << tactic.microseconds << "\n";
        }
      }
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the settings of the caller."""
    for name in ("FUSECONV_TIMING", "FUSECONV_TIMING_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def program() -> Path:
    """The program, in a folder `lib` as in a bundle, compiled once for these sources."""
    sources = [ROOT / "csrc" / "tuning" / name for name in ("tactics.cpp", "process.cpp")]
    text = PROGRAM.encode() + b"".join(path.read_bytes() for path in sorted((ROOT / "csrc" / "tuning").iterdir()))
    folder = ROOT / "build" / "tactics" / hashlib.sha256(text).hexdigest()[:16] / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "program").is_file():
            (folder / "main.cpp").write_text(PROGRAM)
            headers = cpp.json_headers() or "/usr/include"
            command = [os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Wextra", f"-I{ROOT}/csrc", f"-I{headers}"]
            subprocess.run([*command, folder / "main.cpp", *sources, "-o", folder / "made", "-ldl"], check=True)
            (folder / "made").rename(folder / "program")
    return folder / "program"


def ask(program: Path, *words: str, **environment: str) -> tuple[int, list[str], str]:
    done = subprocess.run([program, *words], env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


def problems(**sizes: dict[str, float]) -> Problems:
    return {
        "f": {size[1:]: {name: {"us": us, "noise": 0.0} for name, us in times.items()} for size, times in sizes.items()}
    }


@pytest.mark.parametrize(
    ("known", "size", "expected"),
    [
        ({"s16": {"a": 2.0, "b": 1.0}}, 16, ["b 1", "a 2"]),
        ({"s16": {"a": 2.0, "b": 1.0}}, 999, ["b 1", "a 2"]),
        ({"s16": {"a": 2.0, "b": 1.0}}, 1, ["b 1", "a 2"]),
        # Halfway between 16 and 64 on a logarithmic scale; the times are interpolated likewise.
        ({"s16": {"a": 2.0, "b": 1.0}, "s64": {"a": 2.0, "b": 16.0}}, 32, ["a 2", "b 4"]),
        ({"s16": {"a": 4.0, "b": 1.0}, "s64": {"a": 4.0, "b": 16.0}}, 20, ["b 1.56", "a 4"]),
        # What was measured on one side only follows, the nearer side first.
        ({"s16": {"a": 2.0, "b": 1.0}, "s64": {"a": 2.0, "c": 1.0}}, 60, ["a 2", "c 1", "b 1"]),
        ({}, 16, []),
    ],
)
def test_expected_tactics_are_interpolated_between_measured_sizes(
    program: Path, tmp_path: Path, known: dict[str, dict[str, float]], size: int, expected: list[str]
) -> None:
    tactics.write(tmp_path / "tuning.json", problems(**known))
    status, lines, _ = ask(program, "expected", "f", str(size), FUSECONV_TIMING_CACHE=str(tmp_path / "tuning.json"))
    assert status == 0
    assert [f"{line.split()[0]} {float(line.split()[1]):.3g}" for line in lines] == expected


def test_what_is_measured_is_written_and_python_reads_it(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    words = ["put", 'a "family"', "128", "put", 'a "family"', "16", "measured", 'a "family"', "128"]
    status, lines, _ = ask(program, *words, FUSECONV_TIMING_CACHE=str(path))
    assert (status, lines) == (0, ['a "quoted" 2', "b 3"])  # the slow one is left out
    read = tactics.read(path)
    assert list(read) == ['a "family"']
    assert list(read['a "family"']) == ["16", "128"]
    assert read['a "family"']["16"]["b"] == {"us": 3.0, "noise": 0.01}
    other = tmp_path / "other.json"
    tactics.write(other, read)
    assert ask(program, "measured", 'a "family"', "128", FUSECONV_TIMING_CACHE=str(other))[1] == lines


def test_a_bundle_brings_its_tactics_and_a_process_that_measures_does_not_take_them(
    program: Path, tmp_path: Path
) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    shutil.copy(program, lib / "program")
    assert ask(lib / "program", "measured", "f", "16")[1] == []
    tactics.write(tmp_path / "tuning.json", problems(s16={"a": 2.0}))
    assert ask(lib / "program", "measured", "f", "16")[1] == ["a 2"]
    assert ask(lib / "program", "measured", "f", "16", FUSECONV_TIMING="on")[1] == []


def test_what_another_process_measures_meanwhile_is_kept(program: Path, tmp_path: Path) -> None:
    """So do two copies of the library in one process, those of torch and of ONNX Runtime."""
    path = tmp_path / "tuning.json"
    other = f"{shlex.quote(str(program))} put other 16"
    status, _, _ = ask(
        program, "put", "one", "16", "run", other, "0", "put", "one", "32", FUSECONV_TIMING_CACHE=str(path)
    )
    assert status == 0
    assert {family: list(sizes) for family, sizes in tactics.read(path).items()} == {
        "one": ["16", "32"],
        "other": ["16"],
    }


def test_the_file_does_not_depend_on_the_locale(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    assert ask(program, "german", "-", "0", "put", "f", "4096", FUSECONV_TIMING_CACHE=str(path))[0] == 0
    assert list(tactics.read(path)["f"]) == ["4096"]


@pytest.mark.parametrize(("us", "noise"), [(9e11, 0.0), (1e-9, 0.0), (1.0, 1e308), (1.0, -1e308)])
def test_odd_numbers_are_written_as_json(program: Path, tmp_path: Path, us: float, noise: float) -> None:
    path = tmp_path / "tuning.json"
    tactics.write(path, {"f": {"1": {"a": {"us": us, "noise": noise}}}})
    assert ask(program, "put", "g", "1", FUSECONV_TIMING_CACHE=str(path))[0] == 0
    assert ask(program, "measured", "g", "1", FUSECONV_TIMING_CACHE=str(path))[0] == 0


def test_a_bundle_is_found_by_a_relative_path_and_in_a_folder_lib_only(program: Path, tmp_path: Path) -> None:
    tactics.write(tmp_path / "tuning.json", problems(s16={"a": 2.0}))
    for folder, expected in (("lib", ["a 2"]), ("other", [])):
        (tmp_path / folder).mkdir()
        shutil.copy(program, tmp_path / folder / "program")
        words = [f"{folder}/program", "measured", "f", "16"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == expected


def test_a_bundle_may_be_removed_while_its_library_is_loaded(program: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(program, tmp_path / "lib" / "program")
    tactics.write(tmp_path / "tuning.json", problems(s16={"a": 2.0}))
    gone = f"rm {shlex.quote(str(tmp_path / 'tuning.json'))}"
    assert ask(tmp_path / "lib" / "program", "run", gone, "0", "measured", "f", "16")[:2] == (0, [])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_not_read(program: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(program, tmp_path / "lib" / "program")
    path = tmp_path / "tuning.json"
    make(path)
    assert ask(tmp_path / "lib" / "program", "measured", "f", "16")[:2] == (0, [])
    status, _, said = ask(program, "measured", "f", "16", FUSECONV_TIMING_CACHE=str(path))
    assert (status, f"{path} cannot be read" in said) == (1, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "parse error"),
        ("[]", "cannot use at()"),
        ('{"format": "fuseconv tuning 2", "problems": {}}', 'its format is not "fuseconv tuning 1"'),
        ('{"format": "fuseconv tuning 1"}', "problems"),
        ('{"format": "fuseconv tuning 1", "problems": {"f": {"x": {}}}}', "a size is a positive whole number, not x"),
        ('{"format": "fuseconv tuning 1", "problems": {"f": {"-1": {}}}}', "a size is a positive whole number, not -1"),
        ('{"format": "fuseconv tuning 1", "problems": {"f": {"9e99": {}}}}', "a size is"),
        (json.dumps({"format": "fuseconv tuning 1", "problems": problems(s1={"a": 0.0})}), "is not a positive number"),
        ('{"format": "fuseconv tuning 1", "problems": {"f": {"1": {"a": {"us": 1}}}}}', "noise"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(program: Path, tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    status, _, said = ask(program, "measured", "f", "1", FUSECONV_TIMING_CACHE=str(path))
    assert status == 1
    assert str(path) in said
    assert reason in said
    assert "delete the file, or unset FUSECONV_TIMING_CACHE, which names it" in said


def test_a_damaged_file_of_a_bundle_is_an_error_that_names_the_bundle(program: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    shutil.copy(program, tmp_path / "lib" / "program")
    (tmp_path / "tuning.json").write_text("{")
    status, _, said = ask(tmp_path / "lib" / "program", "measured", "f", "1")
    assert status == 1
    assert f"the tuning file {tmp_path / 'tuning.json'} is not valid: " in said
    assert f"write it again with `fuseconv tune {tmp_path}`" in said


@pytest.mark.parametrize(
    ("value", "status", "said", "error"),
    [
        ("", 0, "off", ""),
        ("on", 0, "on", ""),
        ("off", 0, "off", ""),
        ("known", 1, "off", "there is no tactic for the problem f at size 7"),
        ("1", 1, "", "set it to on, off or known"),
    ],
)
def test_calls_measure_when_asked_to_only(program: Path, value: str, status: int, said: str, error: str) -> None:
    found, lines, told = ask(program, "may", "f", "7", FUSECONV_TIMING=value)
    assert (found, lines) == (status, [said] if said else [])
    assert error in told
