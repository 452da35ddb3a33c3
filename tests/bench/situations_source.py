"""Situations of the source: what its logs are like, and what happens to them while they are mirrored."""

from __future__ import annotations

import time

from situation_list import situation
from situation_rig import Rig, Row

from tolerant_client.testing import Drop, ErrorCode, Fault, FaultProxy, RewriteCorrelationId

_OFFSET_OUT_OF_RANGE = 1


def _copy(rig: Rig, at_most: float = 60) -> None:
    rig.remember()
    rig.start()
    rig.settle(at_most)


@situation("nothing happens: the other rows are to be read beside this one", eos=True)
def plain(rig: Rig) -> None:
    rig.source.create(rig.topic, 2)
    rig.fill(5000, partitions=2)
    _copy(rig)


@situation("transactions of 10 records, every third one aborted", eos=True)
def aborts(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(3000, transaction=10, abort_every=3)
    _copy(rig)


@situation("compacted: half of the records are gone, the cleaner has left holes inside batches", eos=True)
def compacted(rig: Rig) -> None:
    rig.source.create(rig.topic, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    rig.fill(2000)
    rig.fill(1000)  # the first 1,000 keys once more
    deadline = time.monotonic() + 60
    tick = 0
    while time.monotonic() < deadline:
        # Only a closed segment is cleaned, and only the next record closes one.
        rig.fill(1, first=tick, prefix="tick")
        tick += 1
        keys = [found.key for found in rig.source.read(rig.topic)]
        if len(keys) == len(set(keys)):
            break
        time.sleep(0.5)
    end = rig.source.ends(rig.topic)[0][1]
    _copy(rig)
    rig.note(f"{end - len(rig.wanted):,} of {end:,} offsets are holes")


@situation("a log that starts at offset 60,000")
def log_start(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(61_000)
    rig.source.delete_records(rig.topic, 60_000)
    _copy(rig)


@situation("LogAppendTime on the source")
def log_append_time(rig: Rig) -> None:
    rig.source.create(rig.topic, message_timestamp_type="LogAppendTime")
    rig.fill(2000)
    _copy(rig)


@situation("batches of one record")
def single_record_batches(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(20_000, **{"linger.ms": 0, "batch.num.messages": 1})
    _copy(rig)


@situation("a source that deletes what the mirror has not read yet", loss=True)
def retention(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(1000)
    _copy(rig)
    rig.mirror.stop()
    rig.fill(1500, first=1000)
    rig.remember()
    rig.source.delete_records(rig.topic, 1500)
    rig.start()
    rig.settle(30)


@situation("the topic is deleted and made again, with fewer records than were copied", loss=True)
def recreated_smaller(rig: Rig) -> None:
    _recreated(rig, 600, stop_first=False)


@situation(
    "the topic is deleted and made again while the mirror is down, with more records than were copied", loss=True
)
def recreated_larger(rig: Rig) -> None:
    _recreated(rig, 1500, stop_first=True)


def _recreated(rig: Rig, count: int, *, stop_first: bool) -> None:
    rig.source.create(rig.topic)
    rig.fill(1000)
    _copy(rig)
    if stop_first:
        rig.mirror.stop()
    rig.source.delete(rig.topic)
    rig.source.create(rig.topic)
    rig.fill(count, prefix="new")
    rig.remember()
    if stop_first:
        rig.start()
    rig.settle(40, quiet=15)


@situation("partitions are added on the source")
def partitions_added(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(1000)
    _copy(rig)
    rig.source.grow(rig.topic, 3)
    rig.fill(2000, first=1000, partitions=3)
    rig.remember()
    began = time.monotonic()
    rig.settle(45, quiet=20)
    rig.note(f"complete {time.monotonic() - began:.0f} s after they were added (MM2 by default: up to 600 s)")


@situation("a topic that matches the pattern appears")
def topic_added(rig: Rig) -> Row:
    first, second = f"{rig.topic}-1", f"{rig.topic}-2"
    rig.topics = f"{rig.topic}-.*"
    rig.source.create(first)
    rig.source.write(first, 0, 1000)
    rig.start()
    rig.remember(first)
    rig.settle(topic=first)
    rig.wanted.clear()
    rig.source.create(second)
    rig.source.write(second, 0, 1000, prefix="second")
    rig.remember(second)
    began = time.monotonic()
    rig.settle(45, quiet=25, topic=second)
    rig.note(f"complete {time.monotonic() - began:.0f} s after it was made (MM2 by default: up to 600 s)")
    return rig.row(second)


def _behind_faults(rig: Rig, fault: Fault) -> Row:
    rig.source.create(rig.topic, 4)
    rig.fill(100_000, partitions=4, size=500)
    rig.remember()
    rig.partition_fetch_bytes = 64 << 10  # hundreds of answers, not a dozen
    with FaultProxy(rig.source_cluster, [fault], seed=6) as proxy:
        rig.mirror_source = proxy.bootstrap_servers
        rig.start()
        rig.settle(45, quiet=35)
        rig.note(f"{proxy.injected_total:,} faults")
        try:
            return rig.row()
        finally:
            rig.close()  # before the proxy


@situation("1 in 15 Fetch answers is a false OFFSET_OUT_OF_RANGE")
def false_out_of_range(rig: Rig) -> Row:
    return _behind_faults(rig, ErrorCode(_OFFSET_OUT_OF_RANGE, api="Fetch", every=15, after=14))


@situation("1 in 12 Fetch answers has a wrong correlation id")
def wrong_correlation_id(rig: Rig) -> Row:
    return _behind_faults(rig, RewriteCorrelationId(api="Fetch", every=12, after=11))


@situation("1 in 12 Fetch answers is lost")
def lost_answers(rig: Rig) -> Row:
    return _behind_faults(rig, Drop(api="Fetch", every=12, after=11))


@situation("an unclean election takes 500 copied records back", source_nodes=3, loss=True)
def unclean_election(rig: Rig) -> None:
    cluster = rig.source_cluster
    rig.source.create(rig.topic, 1, [[1, 2]], unclean_leader_election_enable="true", min_insync_replicas="1")
    rig.fill(1000)
    _copy(rig)
    cluster.kill(2)
    time.sleep(6)  # its session ends; the in-sync replicas are node 1 alone
    rig.fill(500, first=1000, prefix="lost")
    rig.remember()
    rig.settle(30)
    cluster.kill(1)
    cluster.restart(2)
    cluster.restart(1)
    rig.source.wait(rig.topic, 1)
    rig.fill(300, prefix="after")
    rig.wanted.clear()
    rig.remember()
    rig.settle(45, quiet=20)
    rig.note(f"the source's log ends at {rig.source.ends(rig.topic)[0][1]:,}")


@situation("a source of Kafka 2.8.2", source_version="2.8.2")
def source_2_8(rig: Rig) -> None:
    _from_old(rig)


@situation("a source of Kafka 0.10.2.2", source_version="0.10.2.2")
def source_0_10(rig: Rig) -> None:
    _from_old(rig)


def _from_old(rig: Rig) -> None:
    rig.source_cluster.make_topic(rig.topic)
    rig.fill(1000)
    _copy(rig, 45)
