"""A link as a page or a scrape may find it: many topics, faults, losses, pauses, and texts that mean no good."""

from __future__ import annotations

import math
from dataclasses import replace

from kafka.structs import TopicPartition

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.copy_metrics import Copied, Span
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.service.link_state import DutyState, GroupState, LinkState, PartitionState, Phase, TaskReport

NOW_MS = 1_763_800_000_000
HOSTILE = """</script><img src=x onerror="document.title='owned'">'"&<b>"""
NAMES = ("orders", "payments", "clicks", "audit.log", "inventory", "shipments", "prices", "sessions")


def seen(
    partition: TopicPartition,
    end: int,
    position: int,
    oldest_ms: int | None = None,
    bytes_per_offset: float | None = None,
    target_end: int | None = None,
    offsets_per_s: float = 0.0,
) -> PartitionState:
    """A partition without open transactions; with identical offsets, unless the target has another end."""
    return PartitionState(
        partition,
        position,
        end,
        end,
        oldest_ms=oldest_ms,
        bytes_per_offset=bytes_per_offset,
        target_end=position if target_end is None else target_end,
        offsets_per_s=offsets_per_s,
    )


def state(
    at_ms: int = NOW_MS, *, link: str = "A-B", topics: int = 8, partitions: int = 4, busy: float = 1.0
) -> LinkState:
    """A sample: the n-th topic is n times as far behind, in steps of 100 offsets a partition."""
    states: dict[TopicPartition, PartitionState] = {}
    copied: dict[TopicPartition, Copied] = {}
    for number in range(topics):
        name = NAMES[number] if number < len(NAMES) else f"topic-{number:04}"
        for index in range(partitions):
            partition = TopicPartition(name, index)
            end, lag = 1_000_000 + 1_000 * number, int(100 * number * busy)
            states[partition] = seen(
                partition,
                end,
                end - lag,
                at_ms - 1_500 * number if lag else None,
                250.0,
                offsets_per_s=125.0 * (number + 1) * busy,
            )
            copied[partition] = Copied(
                9_000, 2_250_000, Span(90, 1_800, 2, 90, 20), Span(90, 3_600, 5, 180 + number, 40)
            )
    return LinkState(
        link,
        at_ms,
        at_ms - 3_600_000,
        *link.split("-"),
        phase=Phase.RUNNING,
        partitions=states,
        report=TaskReport(
            at_ms - 4_000,
            records=9_000 * len(copied),
            bytes=2_250_000 * len(copied),
            troubles=7,
            filled=312,
            copied=copied,
            latencies=(0, 5, 40, 200, 300, 120, 30, 4, 1, 0, 0, 0, 0, 0, 0),
            recoveries={"lost": 12, "requeued": 11, "orphan:late": 4, "retired": 2, "reordered": 3},
            throttles={"produce": Span().seen(500).seen(1_500), "fetch": Span().seen(0)},
        ),
        recent=copied,
        asked=frozenset(("source", "target")),
        ledger=(),
        addresses=("a1:9092,a2:9092", "b1:9092"),
        groups=tuple(
            GroupState(group, "orders", index, 998_000, Span().seen(ms))
            for group, ms in (("billing", 210), ("search", 95))
            for index in (0, 1)
        ),
        duties={
            name: DutyState(at_ms - 5_000, "", 60.0) for name in ("sync_topic_configs", "sync_topic_acls", "heartbeats")
        },
        query=f"tolerant-mirror-{link}",
    )


def troubled(at_ms: int = NOW_MS, *, detail: str = HOSTILE) -> LinkState:
    """A link with a blocked partition, a loss and a duty that fails, each told in hostile words."""
    quiet = state(at_ms)
    where = TopicPartition("audit.log", 2)
    row = LedgerRow(at_ms - 60_000, quiet.link, "clicks", 1, 4_000, 4_040, "retention", detail)
    return replace(
        quiet,
        report=replace(quiet.report, blocked={where: f"audit.log-2: {detail}"}, losses=1),
        ledger=(row,),
        duties={**quiet.duties, "sync_topic_acls": DutyState(at_ms - 5_000, f"refused: {detail}", 60.0)},
        restarts=2,
    )


def hour(board: Board, last: LinkState, *, step_ms: int = 10_000) -> None:
    """Gives the board an hour that ends with `last`: lag comes in waves, one of them high."""
    for ago_ms in range(3_600_000, 0, -step_ms):
        at = 1 - ago_ms / 3_600_000
        wave = 1 + 0.6 * math.sin(at * 40) + (6 * math.exp(-(((at - 0.62) / 0.03) ** 2)))
        board.tell(replace(state(last.time_ms - ago_ms, link=last.link, busy=wave), offsets=last.offsets))
    board.tell(last)
