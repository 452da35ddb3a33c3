"""What a command that has begun to write says when it cannot go on: never that it has not started (exit code 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tolerant_client.errors import ClusterUnreachableError, TolerantClientError, text_of


@contextmanager
def half_done(what: str) -> Iterator[None]:
    """Raises TolerantClientError where a cluster goes away behind a control that says that `what` has begun."""
    try:
        yield
    except ClusterUnreachableError as error:
        text = text_of(error)
        raise TolerantClientError(f"{text}; {what} is begun and not finished: run this again") from error
