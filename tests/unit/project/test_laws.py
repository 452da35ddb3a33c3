"""The laws that code and tests cite: each is written down where it is looked for."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.tree import ROOT

DESIGN = ROOT / "tolerant_client" / "DESIGN.md"
CODE = sorted((*ROOT.glob("tolerant_client/**/*.py"), *ROOT.glob("spark_integration/**/*.py")))
TESTS = sorted(path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__))
TEXTS = sorted((*ROOT.glob("*.md"), *ROOT.glob("tolerant_client/**/*.md"), *ROOT.glob("spark_integration/**/*.md")))

_CITED = re.compile(r"(?<![\w.%/-])([TM][1-9])(?![\w%])")
_RANGE = re.compile(r"(?<!\w)([TM])(\d)(?: to |-)[TM](\d)(?!\w)")
_WRITTEN = re.compile(r"^- \*\*([TM]\d)\*\* ", re.MULTILINE)
_LETTERED = re.compile(r"\b[Ll]aws? ([A-Z](?:(?:, | and | to |-)[A-Z])*)\b")
_LETTER = re.compile(r"^\s*([A-Z])\. ", re.MULTILINE)
_MODULE = re.compile(r"[\w/]+\.py\b")


def cited(path: Path) -> set[str]:
    """The numbered laws that a file names, those within "T1 to T8" included."""
    text = path.read_text()
    found = set(_CITED.findall(text))
    for kind, first, last in _RANGE.findall(text):
        found |= {f"{kind}{number}" for number in range(int(first), int(last) + 1)}
    return found


def test_every_numbered_law_that_is_cited_is_written_down_once() -> None:
    written = _WRITTEN.findall(DESIGN.read_text())
    assert len(written) == len(set(written)), "a law is written down twice"
    unknown = {str(path.relative_to(ROOT)): cited(path) - set(written) for path in (*CODE, *TESTS, *TEXTS)}
    assert {path: laws for path, laws in unknown.items() if laws} == {}


def test_every_numbered_law_is_kept_by_code_that_says_so() -> None:
    kept = set().union(*map(cited, CODE))
    assert set(_WRITTEN.findall(DESIGN.read_text())) - kept == set()


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def lettered(path: Path) -> set[str]:
    """The lettered laws of a module, and of those that its docstring names."""
    found = set(_LETTER.findall(docstring(path)))
    for name in _MODULE.findall(docstring(path)):
        named = [other for other in CODE if f"/{other}".endswith(f"/{name}")]
        laws = [set(_LETTER.findall(docstring(other))) for other in named]
        assert sum(map(bool, laws)) <= 1, f"{name} is the name of {len(named)} modules with laws: say in which folder"
        found = found.union(*laws)
    return found


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in CODE])
def test_every_lettered_law_that_a_module_cites_stands_in_a_docstring(path: Path) -> None:
    """Its own, or that of a module that its docstring names."""
    for letters in _LETTERED.findall(path.read_text()):
        assert set(re.findall("[A-Z]", letters)) <= lettered(path), f"law {letters} is in no docstring"
