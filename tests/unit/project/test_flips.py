"""The mutation flips quote code: a quote that is stale would flip nothing, and nobody would notice before the long run."""

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def test_every_flip_quotes_one_piece_of_its_module() -> None:
    flips: Iterable[Any] = runpy.run_path(str(ROOT / "tests/mutation/flip_rules.py"))["FLIPS"]
    texts = {flip.module: (ROOT / "tolerant_client" / f"{flip.module}.py").read_text("utf-8") for flip in flips}
    assert texts
    stale = [f"{flip.rule}: {flip.name}" for flip in flips if texts[flip.module].count(flip.old) != 1]
    assert stale == []
