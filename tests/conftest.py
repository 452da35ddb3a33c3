"""What tests of several folders share.

Property tests try the same examples in every run, so that a run can be repeated; with TOLERANT_LONG=1 they try new ones.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("TOLERANT_LONG"):
    settings.load_profile("repeatable")


@pytest.fixture
def collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collects what stock clients leave unclosed (kafka-python, sockets that were refused), so that no other test is blamed.

    The test itself is marked with `filterwarnings("ignore:unclosed <socket:ResourceWarning")`.
    """
    yield
    caplog.get_records("call").clear()  # they hold exceptions that hold sockets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
