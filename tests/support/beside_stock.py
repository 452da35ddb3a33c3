"""What runs stock kafka-python and ours beside each other needs: both libraries, what a program saw, a gateway."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kafka
import kafka.errors as Errors

import tolerant_client
from support.held_answers import Link
from tolerant_client.testing import KafkaCluster

SLACK = 2.0  # seconds that our longest stall may be longer: a trial, and the noise of the machine
LIBRARIES: dict[str, Any] = {"stock": kafka, "ours": tolerant_client}


@dataclass
class Run:
    """What a program has seen: its longest stall in seconds, and what was raised."""

    stall: float = 0.0
    errors: list[str] = field(default_factory=list)
    done: int = 0

    def timed(self, call: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            call()
            self.done += 1
        except Errors.KafkaError as error:
            self.errors.append(type(error).__name__)
        self.stall = max(self.stall, time.monotonic() - began)

    def is_no_worse_than(self, stock: Run) -> None:
        assert self.stall <= stock.stall + SLACK
        assert len(self.errors) <= len(stock.errors), self.errors
        assert self.done >= stock.done


def new_topic(cluster: KafkaCluster, name: str, **configs: str) -> str:
    name = f"{name}-{time.time_ns()}"
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    admin.close()
    return name


def slow_for(slow_api: int, seconds: float) -> Callable[[Link, int, bytes], list[bytes]]:
    """A gateway that answers Metadata, and so a probe, by itself, and is slow to forward the responses of one API."""

    def answer(link: Link, api_key: int, frame: bytes) -> list[bytes]:
        def forward() -> None:
            with contextlib.suppress(OSError):
                link.client.sendall(frame)

        if api_key != slow_api:
            return [frame]
        threading.Timer(seconds, forward).start()
        return []

    return answer
