"""What a command that has begun to write says when it cannot go on: never that it has not started (exit code 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka.errors import KafkaError

from tolerant_client.errors import TolerantClientError, text_of


@contextmanager
def half_done(what: str) -> Iterator[None]:
    """Raises TolerantClientError for every KafkaError behind a control that says that `what` has begun.

    So what is refused, or cannot be reached, is told with how far the command has come; our own mistakes pass as they are.
    """
    try:
        yield
    except KafkaError as error:
        text = text_of(error)
        raise TolerantClientError(f"{text}; {what} is begun and not finished: run this again") from error
