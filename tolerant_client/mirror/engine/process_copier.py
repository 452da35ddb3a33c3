"""One copier for each process and link, on its own event-loop thread, shared by all tasks of the process.

A Spark worker process outlives its tasks.  The copier stays in it, so a task
finds warm connections, and copying continues between two micro-batches until
the lease ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.event_loop import NetworkSelector
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.copy_metrics import Measured, MeasuredCluster
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import CopyLimits, Progress
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.state.replication_policy import TopicNames


@dataclass(frozen=True)
class LinkConfig:
    """A link as a task receives it; both configurations are Cluster's, and can be pickled."""

    source: Mapping[str, Any] = field(repr=False)
    target: Mapping[str, Any] = field(repr=False)
    producer_id: int
    limits: CopyLimits = CopyLimits()
    link: str = "default"
    policy: MirrorPolicy = MirrorPolicy()
    is_translated: bool = False  # offsets=translated: `producer_id` is not used
    names: TopicNames | None = None  # partitions are named as on the target
    bytes_per_s: int | None = None  # of the link, unless its operator sets another rate
    run: str = ""  # the same for all processes of one mirror: they hand partitions over to each other
    shares: int = 1  # how many processes may copy at once: each gets its share of the link's rate
    file_options: str = ""  # name the link in commands if a file describes it
    generation: int | None = None  # of the prepared link: a process may start when a later one has begun

    def key(self) -> str:
        """The same for equal links; `credentials` are compared by their contents.  A digest, since it covers passwords."""
        names = self.names and self.names.to_json()
        how = [
            self.producer_id,
            vars(self.limits),
            self.link,
            self.policy,
            self.is_translated,
            names,
            self.bytes_per_s,
            self.shares,
            self.run,
            self.generation,
        ]
        parts = [dict(self.source), dict(self.target), *how]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=vars).encode()).hexdigest()


class _Worker:
    def __init__(self, link: LinkConfig) -> None:
        self.process_id = os.getpid()
        self._net = NetworkSelector(client_id="tolerant-mirror")
        file_options = link.file_options
        self._source = MeasuredCluster(
            link.source, self._net, name="source", names=link.names, file_options=file_options
        )
        self._target = MeasuredCluster(
            link.target,
            self._net,
            name="target",
            has_transactional_copies=link.is_translated,
            file_options=file_options,
        )
        self._troubles: dict[TopicPartition, int] = {}
        offsets = translated_offsets() if link.is_translated else identical_offsets(link.producer_id)
        self.copier = LinkCopier(
            self._source,
            self._target,
            offsets,
            link.limits,
            link=link.link,
            policy=link.policy,
            bytes_per_s=link.bytes_per_s,
            shares=link.shares,
            run=link.run,
            generation=link.generation,
        )
        self._net.start()

    @property
    def is_usable(self) -> bool:
        """False in a forked child, which must not touch its parent's sockets, and after a failed loop."""
        return self.process_id == os.getpid() and self.copier.failure is None

    def copy(
        self, until: Mapping[TopicPartition, int | None], hold_ms: int, lease_ms: int
    ) -> dict[TopicPartition, Progress]:
        async def copy() -> dict[TopicPartition, Progress]:
            return await self.copier.copy_each(until, hold_ms=hold_ms, lease_ms=lease_ms)

        progress: dict[TopicPartition, Progress] = self._net.run(copy)
        for partition, done in progress.items():  # a copier counts troubles from the time it got the partition
            before = self._troubles.get(partition, 0)
            self._troubles[partition] = done.troubles
            progress[partition] = done._replace(troubles=done.troubles - (before if done.troubles >= before else 0))
        return progress

    def take(self) -> Measured:
        async def take() -> Measured:
            return self._target.take(self._source)

        measured: Measured = self._net.run(take)
        return measured

    def held(self) -> set[TopicPartition]:
        async def held() -> set[TopicPartition]:
            return self.copier.held

        partitions: set[TopicPartition] = self._net.run(held)
        return partitions

    def close(self) -> None:
        async def close_clusters() -> None:  # on the loop's own thread
            try:
                if self.is_usable:
                    await self.copier.give_back()  # otherwise the next owner waits until its claims expire
            finally:
                self._source.close()
                self._target.close()

        try:
            self._net.run(close_clusters)
        except Exception as error:  # close the other workers, too; the next owner waits until these claims expire
            _log.info("Partitions could not be given back: %s", error)
        finally:
            self._net.stop(timeout_ms=2000)
            self._net.close()


_log = logging.getLogger(__name__)
_workers: dict[str, _Worker] = {}
_lock = threading.Lock()


def copy_ranges(
    link: LinkConfig, until: Mapping[TopicPartition, int | None], *, hold_ms: int = 0, lease_ms: int = 0
) -> dict[TopicPartition, Progress]:
    """Copies partitions of a link at least up to the given offsets; see LinkCopier.copy_each.

    Blocks the calling thread; several threads may call at once.
    """
    worker = _worker(link)
    try:
        return worker.copy(until, hold_ms, lease_ms)
    except BaseException:
        if not worker.is_usable:
            _discard(link, worker)
        raise


def take_measures(link: LinkConfig) -> Measured:
    """What this process, in any of its tasks, has measured of a link since the last call."""
    return _worker(link).take()


def held_partitions(link: LinkConfig) -> set[TopicPartition]:
    """Partitions of a link that this process has, also between calls; not those that another process of the run asked for."""
    return _worker(link).held()


def close_workers() -> None:
    """Closes every copier of this process, after it has given its partitions back; nothing that was copied is undone."""
    with _lock:
        workers = list(_workers.values())
        _workers.clear()
    for worker in workers:
        if worker.process_id == os.getpid():
            worker.close()


def _worker(link: LinkConfig) -> _Worker:
    key = link.key()
    with _lock:
        worker = _workers.get(key)
        if worker is None or not worker.is_usable:
            worker = _workers[key] = _Worker(link)
        return worker


def _discard(link: LinkConfig, worker: _Worker) -> None:
    with _lock:
        if _workers.get(link.key()) is worker:
            del _workers[link.key()]
    if worker.process_id == os.getpid():
        worker.close()
