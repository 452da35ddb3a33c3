"""Situations of the target and of the mirror itself."""

from __future__ import annotations

import signal
import time

from kafka.protocol.admin import AlterClientQuotasRequest
from situation_list import situation
from situation_rig import Rig

from tolerant_client.cluster.cluster import Cluster

_SMALL = 100_000  # bytes, max.message.bytes of a target that takes less than its source


def _copy(rig: Rig, at_most: float = 60) -> None:
    rig.remember()
    rig.start()
    rig.settle(at_most)


@situation("batches of 900 KB, and a target topic that takes 100 KB")
def large_batches(rig: Rig) -> None:
    rig.target.create(rig.topic)
    _small_target(rig, 0)


@situation("one record of 300 KB among others, and a target topic that takes 100 KB", loss=True)
def large_record(rig: Rig) -> None:
    rig.target.create(rig.topic)
    _small_target(rig, 300_000)


@situation("the same, and the mirror makes the target topic")
def large_record_new_topic(rig: Rig) -> None:
    _small_target(rig, 300_000)


def _small_target(rig: Rig, large: int) -> None:
    rig.source.create(rig.topic)
    rig.fill(400, size=5000, **{"batch.size": 1_000_000, "linger.ms": 500})
    if large:
        rig.fill(1, size=large, prefix="large")
    rig.fill(400, first=400, size=5000)
    # The broker's limit: MirrorMaker 2 takes back what is set for the topic.
    rig.target.configure("1", "message.max.bytes", str(_SMALL), is_broker=True)
    try:
        _copy(rig, 40)
    finally:
        rig.target.configure("1", "message.max.bytes", "1048588", is_broker=True)


@situation("somebody else writes to the target topic")
def foreign_writes(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(1000)
    _copy(rig)
    rig.target.write(rig.topic, 0, 100, prefix="foreign")
    rig.fill(500, first=1000)
    rig.remember()
    rig.settle(20)


@situation("the target topic is deleted")
def target_deleted(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(1000)
    _copy(rig)
    rig.target.delete(rig.topic)
    rig.fill(500, first=1000)
    rig.remember()
    rig.settle(60, quiet=30)


@situation("two of three target brokers are away for 20 s: NOT_ENOUGH_REPLICAS", target_nodes=3)
def not_enough_replicas(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.target.create(rig.topic, 1, [[1, 2, 3]], min_insync_replicas="2")
    rig.fill(1000)
    _copy(rig)
    cluster = rig.target_cluster
    cluster.stop(3)
    cluster.stop(2)
    rig.fill(1000, first=1000)
    rig.remember()
    time.sleep(20)
    cluster.restart(2, wait=False)
    cluster.restart(3)
    rig.settle(90, quiet=60)


@situation("the target throttles its producers to 200 KB/s")
def throttled(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(4000, size=500)
    _quota(rig.target.servers, 200_000.0)
    began = time.monotonic()
    try:
        _copy(rig, 90)
    finally:
        _quota(rig.target.servers, None)
    rig.note(f"complete after {time.monotonic() - began:.0f} s, start-up included")


def _quota(servers: str, rate: float | None) -> None:
    entry = AlterClientQuotasRequest.EntryData
    change = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=None)],
        ops=[entry.OpData(key="producer_byte_rate", value=rate or 0.0, remove=rate is None)],
    )
    with Cluster({"bootstrap_servers": servers}, name="target") as cluster:
        answer = cluster.run(cluster.send, AlterClientQuotasRequest(entries=[change], validate_only=False))
        assert answer.entries[0].error_code == 0, answer


_MANY = 200_000


def _fill_many(rig: Rig) -> None:
    rig.source.create(rig.topic)
    rig.fill(_MANY, size=200)
    rig.remember()


@situation("kill -9 of the mirror in the middle, started again", eos=True)
def killed(rig: Rig) -> None:
    _fill_many(rig)
    mirror = rig.start()
    rig.until_copied(0.2)
    mirror.kill()
    rig.note(f"killed at {rig.arrived():,}")
    rig.start()
    rig.settle(90, quiet=15)


@situation("two mirrors at once (two nodes of one MirrorMaker 2)", eos=True)
def two_at_once(rig: Rig) -> None:
    _fill_many(rig)
    rig.start()
    rig.start()
    rig.settle(90, quiet=15)


@situation("a mirror is paused for 25 s, another takes over, the first goes on", eos=True)
def paused(rig: Rig) -> None:
    _fill_many(rig)
    first = rig.start()
    rig.until_copied(0.2)
    first.signal(signal.SIGSTOP)
    rig.note(f"paused at {rig.arrived():,}")
    began = time.monotonic()
    rig.start()
    time.sleep(max(3.0, began + 25 - time.monotonic()))
    rig.note(f"goes on {time.monotonic() - began:.0f} s later at {rig.arrived():,}")
    first.signal(signal.SIGCONT)
    rig.settle(90, quiet=15)
