"""What is said of transactions that the target does not allow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.mirror.engine.translated.copy_transaction import CopyTransaction


async def refuse(
    kind: int, key: str, what: str, request: Callable[[], Any], read: Callable[[Any], Any], patience_ms: Any = None
) -> Any:
    return read(SimpleNamespace(error_code=Errors.InvalidTransactionTimeoutError.errno))


def test_a_mirror_whose_transactions_are_too_long_for_the_brokers_is_told_no_option_of_a_sink() -> None:
    nobody: Any = None
    partition = TopicPartition("orders", 0)
    copying = CopyTransaction(nobody, "tolerant-mirror-a-copy-orders-0", partition, partition, 60_000)
    copying._coordinators = SimpleNamespace(ask=refuse)  # type: ignore[assignment]
    with pytest.raises(
        OptionError, match="transactions of 60000 ms, .*transaction.max.timeout.ms; raise that"
    ) as raised:
        asyncio.run(copying.renew())
    assert "kafka.transaction.timeout.ms" not in str(raised.value)
