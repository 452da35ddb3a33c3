"""A process that ends at once says why, whether it is spoken with or not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.spark_processes import Process


@pytest.mark.parametrize("is_spoken_with", [False, True])
def test_the_reason_of_a_process_that_ends_is_shown(tmp_path: Path, is_spoken_with: bool) -> None:
    script = "import sys; print('first'); sys.stderr.write('no such port')"
    process = Process([sys.executable, "-c", script], tmp_path / "log", {}, is_spoken_with=is_spoken_with)
    with pytest.raises(AssertionError, match="(?s)said nothing more:\nfirst.*no such port"):
        process.wait_for(re.compile("started at (.*)"))
    process.close()
