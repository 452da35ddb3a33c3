"""Waiting for facts instead of for a time, with bounds that a loaded machine keeps, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from uuid import uuid4

import kafka
from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from support.repeats import Wire, wait_for_leader

PATIENCE_S = 90.0

_T = TypeVar("_T")


def until(
    read: Callable[[], _T], is_so: Callable[[_T], object] = bool, patience_s: float = PATIENCE_S, pause_s: float = 0.05
) -> _T:
    """What is read, once it is so."""
    deadline = time.monotonic() + patience_s
    while not is_so(found := read()):
        assert time.monotonic() < deadline, f"it did not happen in time: {found}"
        time.sleep(pause_s)
    return found


@contextmanager
def changing(servers: str) -> Iterator[Any]:
    """An admin client; in the end all brokers act by what it has changed."""
    with kafka.KafkaAdminClient(bootstrap_servers=servers) as admin:
        yield admin
    settle(servers)


def settle(servers: str) -> None:
    """Waits until each of these brokers acts by all that was changed before: topics, settings, rights, credentials, quotas.

    A change is answered once it is in the controllers' log, which brokers read later (KRaft).  What they have read they first show and
    then apply, all that came together at once.  So two changes follow here, the second one once the first is shown: who shows it
    has applied the first one and all before it.
    """
    user = f"settled-{uuid4().hex}"
    with _wires(servers) as wires:
        if wires[0].speaks(AlterClientQuotasRequest):  # Kafka 2.6
            for is_there in (True, False):
                assert wires[0].ask(_quota(user, is_there)).entries[0].error_code == 0
                for wire in wires:
                    until(lambda: bool(wire.ask(_quotas(user)).entries) is is_there, pause_s=0.005)


def until_led(servers: str, topic: str) -> None:
    """Waits until each of these brokers shows a leader of each partition; quicker than settle."""
    with _wires(servers) as wires:
        for wire in wires:
            wait_for_leader(wire, topic)


@contextmanager
def _wires(servers: str) -> Iterator[list[Wire]]:
    """To each of these brokers that runs."""
    wires = []
    for address in servers.split(","):
        with suppress(ConnectionRefusedError):
            wires.append(Wire(address))
    try:
        yield wires
    finally:
        for wire in wires:
            wire.socket.close()


def _quota(user: str, is_there: bool) -> Any:
    kind = AlterClientQuotasRequest.EntryData
    entity = kind.EntityData(entity_type="user", entity_name=user)
    change = kind.OpData(key="producer_byte_rate", value=1e9, remove=not is_there)
    return AlterClientQuotasRequest(entries=[kind(entity=[entity], ops=[change])], validate_only=False)


def _quotas(user: str) -> Any:
    kind = DescribeClientQuotasRequest.ComponentData
    return DescribeClientQuotasRequest(components=[kind(entity_type="user", match_type=0, match=user)], strict=True)
