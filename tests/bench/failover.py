"""How many records a consumer group reads again, or never, when it fails over to the target.

    python tests/bench/failover.py [--mirrors mm2,mm2-eos,ours]

Traffic of 20 s is mirrored while groups commit; MirrorMaker 2 translates their offsets (checkpoints and group
offsets every second instead of every 60 s), ours needs no translation: the group's offset on the source is its
offset on the target.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cluster_topics import QUIET
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table
from situation_rig import MIRRORS, Rig, rig

from tolerant_client.testing import KafkaCluster

LAGS = (0, 10, 100, 1000, 10_000)
_ROUNDS, _PER_ROUND = 20, 1000
_CHECKPOINTS = {
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
}
_BROKER = {"log.cleaner.backoff.ms": "300"}


class Replay(NamedTuple):
    """`lag` records were unread when the source went away; `again` and `never` are what the translated offset costs."""

    data: str
    mirror: str
    lag: int
    source_offset: int
    target_offset: int | None
    again: int | None
    never: int | None


def _plain(made: Rig) -> None:
    made.source.create(made.topic)
    _traffic(made, lambda first: made.fill(_PER_ROUND, first))


def _aborts(made: Rig) -> None:
    made.source.create(made.topic)
    _traffic(made, lambda first: made.fill(_PER_ROUND, first, transaction=10, abort_every=3))


def _compacted(made: Rig) -> None:
    """10,000 records of which the cleaner has left 5,000, then the traffic."""
    made.source.create(made.topic, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    for _ in range(2):
        made.fill(5000, prefix="old")
    for tick in range(20):
        made.fill(1, first=tick, prefix="tick")
        time.sleep(0.5)
        if len(made.source.read(made.topic)) <= 5000 + tick + 2:
            break
    made.source.configure(made.topic, "min.compaction.lag.ms", "86400000")
    _traffic(made, lambda first: made.fill(_PER_ROUND, first))


def _traffic(made: Rig, write: Callable[[int], None]) -> None:
    made.start(_CHECKPOINTS)
    for number in range(_ROUNDS):
        began = time.monotonic()
        write(number * _PER_ROUND)
        time.sleep(max(0.0, began + 1 - time.monotonic()))


def measure(made: Rig, data: str, act: Callable[[Rig], None]) -> list[Replay]:
    act(made)
    made.remember()
    records = sorted(made.source.read(made.topic), key=lambda found: found.place.offset)
    end = made.source.ends(made.topic)[0][1]
    places = {lag: records[-lag].place.offset if lag else end for lag in LAGS}
    for lag, offset in places.items():
        _commit(made.source.servers, f"group-{lag}", TopicPartition(made.topic, 0, offset))
    made.settle(30)
    time.sleep(15)  # fifteen checkpoints
    copied = made.target.read(made.topic)
    replays = []
    for lag, offset in places.items():
        to_read = {found.key for found in records if found.place.offset >= offset}
        there = offset if made.kind == "ours" else _committed(made.target.servers, f"group-{lag}", made.topic)
        again = never = None
        if there is not None:
            would_read = {found.key for found in copied if found.place.offset >= there and not found.is_filler}
            again, never = len(would_read - to_read), len(to_read - would_read)
        replays.append(Replay(data, made.kind, lag, offset, there, again, never))
    return replays


def _commit(servers: str, group: str, place: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **QUIET})
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


def _committed(servers: str, group: str, topic: str) -> int | None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **QUIET})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        return found.offset if found.offset >= 0 else None
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirrors", type=lambda text: text.split(","), default=list(MIRRORS))
    options = parser.parse_args()
    table = Table(title="records read again or never by a group that fails over")
    for column in Replay._fields:
        table.add_column(column.replace("_", " "), justify="left" if column in ("data", "mirror") else "right")
    number = 0
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        for act in (_plain, _aborts, _compacted):
            for kind in options.mirrors:
                number += 1
                # Clusters of their own: group names and their offsets stay apart.
                with (
                    KafkaCluster("4.2.0", broker_config=_BROKER, heap="384m", java_options=()) as source,
                    KafkaCluster("4.2.0", heap="384m", java_options=()) as target,
                ):
                    addresses = source.bootstrap_servers, target.bootstrap_servers
                    with rig(kind, act.__name__.strip("_"), number, Path(folder), *addresses) as made:
                        for replay in measure(made, made.situation, act):
                            print(replay, flush=True)
                            cells = ("none" if value is None else f"{value:,}" for value in replay[2:])
                            table.add_row(replay.data, replay.mirror, *cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
