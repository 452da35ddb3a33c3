"""The examples with fixtures, word for word as README.md and docs/testing.md print them, in a folder of a reader's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.broker
@pytest.mark.parametrize("page", ["README.md", "docs/testing.md"])
def test_a_documented_test_passes_as_it_stands(page: str, tmp_path: Path) -> None:
    text = ROOT.joinpath(page).read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "kafka_cluster" in block)
    tmp_path.joinpath("test_example.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"],
        cwd=tmp_path, env={**os.environ, "CI": "true"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
