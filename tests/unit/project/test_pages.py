"""What the pages show of Python can be imported."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import kafka

import tolerant_client
from support.tree import ROOT

PAGES = sorted(
    path
    for folder in ("", "docs", "tolerant_client", "spark_integration")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "block"), BLOCKS, ids=[f"{page.relative_to(ROOT)}-{n}" for n, (page, _) in enumerate(BLOCKS)]
)
def test_what_a_page_imports_is_there(page: Path, block: str) -> None:
    for node in ast.walk(ast.parse(textwrap.dedent(block))):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]
        elif isinstance(node, ast.Import):
            assert all(importlib.import_module(alias.name) for alias in node.names)


def test_the_pages_import_our_own() -> None:
    assert sum("from tolerant_client" in block for _, block in BLOCKS) >= 4


def test_every_public_name_is_where_it_is_said_to_be() -> None:
    assert all(hasattr(tolerant_client, name) for name in tolerant_client.__all__)
    assert set(tolerant_client._HOMES) == {*tolerant_client.__all__, *tolerant_client._KAFKAS}
    assert {*kafka.__all__} <= {*dir(tolerant_client)}, "of programs that change the import"
    assert tolerant_client.TopicPartition is kafka.TopicPartition
