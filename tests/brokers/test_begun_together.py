"""Two translated links of one source that begin the same logs at the same time: each record is on the target once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.log_readers import read_with_confluent
from support.mirror_link import append_records, both, create_topic, mirror, prepare_translated_link
from tolerant_client.errors import RecoveryExhaustedError, TargetDivergedError
from tolerant_client.mirror.engine.limits import CopyLimits, Progress, TransactionLimits
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.translated import partition as translated_partition
from tolerant_client.mirror.engine.translated.copy_transaction import CopyTransaction
from tolerant_client.mirror.engine.translated.offsets import translated_offsets

FAST = TransactionLimits(takeover_ms=300, linger_ms=5, commit_ms=50)
PARTITIONS = 4


def numbers(target: str, topic: str) -> list[tuple[int, Any]]:
    partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
    logs = read_with_confluent(target, partitions, committed=True)
    return sorted((p.partition, record.key) for p, log in logs.items() for record in log.values())


def once(records: int) -> list[tuple[int, bytes]]:
    return sorted((p, b"%d" % n) for p in range(PARTITIONS) for n in range(records))


def together(source: str, target: str, topic: str, is_running: bool) -> dict[str, dict[TopicPartition, Progress]]:
    """Two mirrors, `--once`, or first idle and then with records."""
    found: dict[str, dict[TopicPartition, Progress]] = {}
    idle = threading.Barrier(3 if is_running else 2)

    def run(link: str) -> None:
        with both(source, target) as (origin, there):

            async def copy() -> dict[TopicPartition, Progress]:
                prepared = await prepare_translated_link(origin, there, topic, link)
                copier = LinkCopier(origin, there, translated_offsets(FAST), CopyLimits(patience_ms=30_000), link=link)
                if not is_running:
                    return await copier.copy_each(prepared.ends)
                await copier.copy_each(prepared.ends, lease_ms=60_000)
                await origin.net.sleep(0.2)
                idle.wait()  # both have written where they begin
                return await copier.copy_each(dict.fromkeys(prepared.ends, 200))

            if not is_running:
                idle.wait()
            found[link] = origin.run(copy)

    threads = [threading.Thread(target=run, args=(f"{topic}-{name}",)) for name in "ab"]
    for thread in threads:
        thread.start()
    if is_running:
        idle.wait(60)
        append_records(source, topic, 200, partitions=PARTITIONS)
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("is_running", [False, True], ids=["once", "idle"])
def test_of_two_links_that_begin_the_same_logs_at_once_one_copies_each_and_the_other_is_refused_there(
    source: str, target: str, is_running: bool
) -> None:
    topic = f"together-{is_running}"
    create_topic(source, topic, PARTITIONS)
    if not is_running:
        append_records(source, topic, 200, partitions=PARTITIONS)
    found = together(source, target, topic, is_running)
    assert numbers(target, topic) == once(200)
    for n in range(PARTITIONS):
        ends = [found[f"{topic}-{name}"][TopicPartition(topic, n)] for name in "ab"]
        (copied,) = [end for end in ends if end.error is None]
        (refused,) = [end.error for end in ends if end.error is not None]
        assert copied.records == 200 and isinstance(refused, TargetDivergedError), refused
        assert f"has what link {topic}-" in str(refused) and "Mirror it with --link" in refused.remedy


@pytest.mark.parametrize("is_committed", [False, True], ids=["aborted", "committed"])
def test_nothing_is_decided_while_a_transaction_of_another_link_is_not_over(
    source: str, target: str, is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A is killed, or frozen, between its rows and their commit.  2. B waits, though it has A's claim.  3. A's transaction ends."""
    topic = f"together-frozen-{is_committed}"
    create_topic(source, topic, PARTITIONS)
    append_records(source, topic, 20, partitions=PARTITIONS)
    frozen, goes_on = threading.Semaphore(0), threading.Event()

    class Frozen(CopyTransaction):
        async def commit(self) -> None:
            if self.runs and self.transactional_id.startswith(f"tolerant-mirror-{topic}-a-"):
                frozen.release()
                while not goes_on.is_set():
                    await self._cluster.net.sleep(0.01)
                if not is_committed:
                    await self._cluster.net.sleep(600)
            await super().commit()

    monkeypatch.setattr(translated_partition, "CopyTransaction", Frozen)
    limits = TransactionLimits(
        takeover_ms=300, linger_ms=5, commit_ms=50, timeout_ms=60_000 if is_committed else 15_000
    )
    ends: list[Any] = []
    with both(source, target) as (origin, there):

        async def first() -> None:
            prepared = await prepare_translated_link(origin, there, topic, f"{topic}-a")
            copier = LinkCopier(origin, there, translated_offsets(limits), link=f"{topic}-a")
            for name, told in (
                ("want", None),
                ("holds", True),
                ("term", 1),
            ):  # as if its lease had ended while it was frozen
                monkeypatch.setattr(copier.claims, name, lambda _, told=told: told)
            origin.net.call_soon_with_future(lambda: copier.copy_each(prepared.ends))
            while not goes_on.is_set() or is_committed and time.monotonic() < until[0]:
                await origin.net.sleep(0.01)

        until = [float("inf")]
        running = threading.Thread(target=lambda: origin.run(first))
        running.start()
        for _ in range(PARTITIONS):
            assert frozen.acquire(timeout=60)

        def second() -> None:
            try:
                ends.append(
                    mirror(
                        source, target, topic, f"{topic}-b", is_translated=True, limits=CopyLimits(patience_ms=90_000)
                    )
                )
            except (TargetDivergedError, RecoveryExhaustedError) as error:
                ends.append(error)

        other = threading.Thread(target=second)
        other.start()
        time.sleep(3)
        assert not ends and numbers(target, topic) == []
        goes_on.set()
        until[0] = time.monotonic() + 5
        other.join()
        running.join()
    assert numbers(target, topic) == once(20)
    assert isinstance(ends[0], TargetDivergedError) is is_committed, ends
