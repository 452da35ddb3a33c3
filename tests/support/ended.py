"""The end of a producer that has records nobody takes, and of what it keeps open."""

from __future__ import annotations

from typing import Any


def end(producer: Any) -> None:
    """Closes it without its records: close() of kafka-python would raise, and once more when it is collected."""
    producer._sender.force_close()
    producer._sender.join(30)
    producer.close(timeout=0)
