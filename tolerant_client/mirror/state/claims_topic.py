"""The claims log on the target: reads it, and claims in it what this process writes (claims.py has the laws)."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import WakeupNotifier
from tolerant_client.errors import OptionError, RecoveryExhaustedError, StoppedError, TargetClaimedError, text_of
from tolerant_client.mirror.state.claimant import Claimant
from tolerant_client.mirror.state.claims import LEASE_MS, RENEW_MS, Claim, ClaimsLog
from tolerant_client.mirror.state.claims_record import (
    CLAIMS_TOPIC,
    COPIER,
    WHOLE_TOPIC,
    Holder,
    Names,
    decode_claims,
    encode_claims,
    whole_of,
)
from tolerant_client.mirror.state.health import utc
from tolerant_client.mirror.state.state_topic import StateTopic
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import decode_records
from tolerant_client.records.record_sets import iter_record_sets

_TICK_S = 0.25
_POLL_MS = 500
_TURN_S = 0.02
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_PATIENCE_S = 60.0  # how long a start waits for a claims log that cannot be used
# A start reports after this time that it waits: a holder that is alive has renewed its claim by then.
_TOLD_AFTER_S = 1.5 * RENEW_MS / 1000
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": "3600000",
    "segment.ms": "600000",
}


def claims_topic(cluster: Cluster) -> StateTopic:
    """The claims log of a cluster."""
    return StateTopic(cluster, CLAIMS_TOPIC, _CONFIG, "the claims of mirrors", insync_of_two=1, codec=codecs.GZIP)


async def read_claims(target: Cluster) -> ClaimsLog:
    """The claims log of a target as it is now; empty if no mirror ever claimed anything.

    Raises KafkaError, also TopicAuthorizationFailedError.
    """
    log = ClaimsLog()
    topic = claims_topic(target)
    if not await topic.exists():
        return log
    follower = Follower(topic, log)
    await target.insist(f"reading {topic.what}", follower.read_to_end)
    return log


class Follower:
    """Reads the claims log in order and passes every record to `log` once."""

    def __init__(self, topic: StateTopic, log: ClaimsLog | Claimant) -> None:
        self.position = -1  # the next offset to be read
        self.log_start = -1
        self._topic = topic
        self._log = log

    async def read_to_end(self) -> None:
        """Reads up to the present end; raises KafkaError."""
        end = await self._topic.end()
        while self.position < end:
            if not await self.follow(0) and self.position < end:
                await self._topic.cluster.net.sleep(0.005)  # the high watermark has not reached the end yet

    async def follow(self, max_wait_ms: int) -> bool:
        """Reads new records, and waits for them up to `max_wait_ms`; returns whether there were any.

        Raises OffsetOutOfRangeError if the log was created again or truncated: the caller starts again.
        """
        if self.position < 0:
            self.position = self.log_start = await self._topic.start()
        part = await self._topic.fetch(self.position, max_wait_ms=max_wait_ms)
        before, self.log_start, turned_at = self.position, part.log_start_offset, time.monotonic()
        for header, batch in iter_record_sets(part.records, from_offset=self.position):
            if not header.has_log_append_time:
                raise OptionError(
                    f"{CLAIMS_TOPIC} has records with CreateTime, so it does not show when a claim was renewed:"
                    " delete that topic; the mirror creates it with LogAppendTime"
                )
            for record in [] if header.is_control else decode_records(batch):
                found = decode_claims(record.key, record.value) if record.offset >= self.position else None
                if found is not None:
                    self._log.read(found, record.timestamp, record.offset)
            self.position = at = max(self.position, header.next_offset)
            # An hour of claims of thousands of partitions takes seconds.  But a turn may be long, and in it come the claims of many.
            if time.monotonic() - turned_at > _TURN_S:
                await self._topic.cluster.net.sleep(0)
                turned_at = time.monotonic()
                if self.position != at:
                    return True  # who reads the log starts again
        return self.position > before


class Claims:
    """One holder at work: claims what is wanted, renews it, and announces its end; on the event loop of `target`.

    It has its own connections, so that a renewal does not wait behind copied batches, nor for the quota that they use up.  Nothing is sent to `target` after the lease
    is over: its connections are dropped then, with what waits on them.  `on_change` is called when a claim was granted, asked
    for or lost.  `spawn` runs a coroutine beside the caller.
    """

    def __init__(
        self, target: Cluster, holder: Holder, spawn: Callable[..., None], on_change: Callable[[], None]
    ) -> None:
        self.claimant = Claimant(holder)
        self.is_held_up: Callable[[], bool] = lambda: False  # whether a broker may have batches that it has not read
        self._problems: dict[str, str] = {}  # why the log cannot be written or read now
        self._is_forbidden = False  # and waiting does not change that
        self._guarded = target
        self._apart: Cluster | None = None
        self._spawn = spawn
        self._on_change = on_change
        self._is_running = False
        self._is_current = False  # the log was read up to its end when the claims began
        self._is_following = False
        self._is_ending = False
        self._ends_by = float("inf")  # until then `end` waits
        self._reader: Follower | None = None
        self._wakeup = WakeupNotifier(target.net)
        self._own_offset = -1  # of its newest record
        self._quiet_until = float("-inf")
        # For each holder that blocks us: the offset of its newest record when we first saw it.
        self._first_seen: dict[str, int] = {}
        target.guard(self._may_send)

    def want(self, partitions: Iterable[TopicPartition]) -> None:
        """Claims these partitions until `leave`."""
        self.claimant.want(partitions)
        self._run()

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """Releases partitions; the caller writes nothing to them any more and has nothing in flight."""
        self.claimant.leave(partitions)
        self._run()

    def holds(self, partition: TopicPartition) -> bool:
        """Whether this process may append to the partition now; ask right before the append."""
        return self.claimant.holds(partition, boot_s())

    def term(self, partition: TopicPartition) -> int | None:
        """As Claimant.term."""
        return self.claimant.term(partition, boot_s())

    def silent_s(self, partition: TopicPartition) -> float:
        """As ClaimsLog.silent_ms, in seconds."""
        return self.claimant.log.silent_ms(partition) / 1000

    @property
    def problem(self) -> str:
        """Why nothing can be claimed now."""
        return next(iter(self._problems.values()), "")

    def rivals(self) -> dict[TopicPartition, Claim]:
        """Wanted partitions that another run holds, if that holder has renewed its claim since we first saw it.

        Empty until we have read the log up to a recent record of our own: an earlier renewal may be long past.
        """
        if not (self._is_current and self.claimant.is_read_up(boot_s())):
            self._first_seen = {}
            return {}
        blocked = {
            p: claim for p, claim in self.claimant.blocked.items() if claim.holder.run != self.claimant.holder.run
        }
        found = {claim.holder.id: claim.offset for claim in blocked.values()}
        self._first_seen = {holder: self._first_seen.get(holder, seen) for holder, seen in found.items()}
        return {p: claim for p, claim in blocked.items() if claim.offset > self._first_seen[claim.holder.id]}

    async def take(
        self,
        names: Collection[TopicPartition],
        tell: Callable[[str], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Claims all of these; waits until the claims of dead holders end, which it tells once.

        Raises TargetClaimedError if a holder is alive, RecoveryExhaustedError if the claims log cannot be used, and StoppedError
        once `is_stopping`.
        """
        self.want(names)
        self._first_seen = {}  # of an earlier try
        started, is_told = boot_s(), False
        while not all(self.holds(name) for name in names):
            if is_stopping():
                self.leave(names)
                raise StoppedError("A stop was asked for before the target was claimed")
            waited_s = boot_s() - started
            if rivals := self.rivals():
                self.leave(names)
                raise claimed_by(*min(rivals.items()))
            if self.problem and (self._is_forbidden or waited_s > _PATIENCE_S):
                self.leave(names)
                span = "" if self._is_forbidden else f" for {waited_s:.0f} s"
                raise RecoveryExhaustedError(f"The target could not be claimed{span}: {self.problem}")
            if not is_told and waited_s > _TOLD_AFTER_S and self._is_current and (blocked := self.claimant.blocked):
                is_told = True
                claim = min(blocked.items())[1]
                tell(
                    f"waiting for {claim.holder}, which last renewed its claim at {utc(claim.renewed_ms)}: the claim ends"
                    f" after {LEASE_MS // 1000} s of silence by our clock, unless that mirror still runs"
                )
            await self._guarded.net.sleep(0.01)

    async def end(self, timeout_s: float = 4.0) -> Names:
        """Announces that the run is over, and waits until its other processes have released what they hold, or are gone.

        They write to the control before that (LinkCopier); several calls wait `timeout_s` in all.  Returns what they have not
        released.
        """
        if not self._is_running:
            return self.claimant.log.names_of_run(self.claimant.holder)
        self._ends_by = min(self._ends_by, boot_s() + timeout_s)
        self._is_ending = True
        self.claimant.end()
        self._wakeup.notify()
        while boot_s() < self._ends_by and not (
            self.claimant.is_said and not self.claimant.log.names_of_run(self.claimant.holder)
        ):
            await self._guarded.net.sleep(0.02)
        self._is_ending = False
        return self.claimant.log.names_of_run(self.claimant.holder)

    async def released(self, timeout_s: float = 4.0) -> None:
        """If nothing is wanted, or the run is over, waits up to `timeout_s` until nothing is claimed any more."""
        claimant, deadline = self.claimant, boot_s() + timeout_s
        while self._is_running and not claimant.is_said and boot_s() < deadline:
            if claimant.wanted and not claimant.is_run_over:
                return
            await self._guarded.net.sleep(0.005)

    def _run(self) -> None:
        self._wakeup.notify()
        if not self._is_running and not self.claimant.is_said:
            self._is_running, self._is_current = True, False
            self._spawn(self._say)
            if not self._is_following:
                self._is_following = True
                self._spawn(self._follow)

    async def _say(self) -> None:
        """Appends the claimant's records whenever one is due."""
        claimant, pause_s = self.claimant, _FIRST_PAUSE_S
        try:
            while not claimant.is_said or self._is_ending:
                self._see_to_lapse()
                claimant.is_held_up = self.is_held_up()
                if not self._is_current or boot_s() < self._quiet_until or not claimant.is_due(boot_s()):
                    await self._wakeup(_TICK_S)
                    continue
                self._target.leave_throttled(RENEW_MS / 1000)
                record, read_before = claimant.record(boot_s()), self._follower.position
                try:
                    offset = await claims_topic(self._target).put(record.holder.id.encode(), encode_claims(record))
                except Errors.KafkaError as error:
                    claimant.not_said()
                    await self._trouble("write", error, pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                self._problems.pop("write", None)
                pause_s, self._own_offset = _FIRST_PAUSE_S, offset
                if read_before > offset:
                    self._start_anew()  # the log was created again: it no longer has what we had read
        finally:
            self._is_running = False

    async def _follow(self) -> None:
        """Reads the log as it grows."""
        try:
            while self._is_running:
                await self._read_on()
        finally:
            self._is_following = False

    async def _read_on(self) -> None:
        try:
            if not self._is_current:
                await claims_topic(self._target).ensure()
                await self._follower.read_to_end()
                if self._follower.log_start > self.claimant.log.silent_before:  # law D: truncated, or idle for an hour
                    self._quiet_until = boot_s() + LEASE_MS / 1000
                self._is_current = True
                self._wakeup.notify()
            else:
                is_more = await self._follower.follow(_POLL_MS)
                if self._follower.log_start > self._own_offset >= 0:
                    raise Errors.OffsetOutOfRangeError("our newest record was deleted")
                if not is_more:
                    self._problems.pop("read", None)
                    self._see_to_lapse()
                    return
        except Errors.OffsetOutOfRangeError:
            self._start_anew()
        except OptionError as error:
            await self._trouble("read", error, _LONGEST_PAUSE_S)
            return
        except Errors.UnknownTopicOrPartitionError as error:
            self._is_current = False  # it was deleted, and will be created again
            await self._trouble("read", error, _FIRST_PAUSE_S)
            return
        except Errors.KafkaError as error:
            await self._trouble("read", error, _LONGEST_PAUSE_S)
            return
        self._problems.pop("read", None)
        self._see_to_lapse()
        self._wakeup.notify()
        self._on_change()

    @property
    def _target(self) -> Cluster:
        if self._apart is None:
            self._apart = self._guarded.apart()
        return self._apart

    @property
    def _follower(self) -> Follower:
        if self._reader is None:
            self._reader = Follower(claims_topic(self._target), self.claimant)
        return self._reader

    def _start_anew(self) -> None:
        self.claimant.start_again()
        self._follower.position, self._is_current, self._own_offset = -1, False, -1

    def _may_send(self) -> bool:
        if not self.claimant.has_lapsed(boot_s()):
            return True
        self._spawn(self._lapse)
        return False

    async def _lapse(self) -> None:
        self._see_to_lapse()

    def _see_to_lapse(self) -> None:
        """Law E: once the lease is over, drops the connections with all that is queued or in flight."""
        if self.claimant.has_lapsed(boot_s()):
            self.claimant.lapse()
            self._guarded.drop_connections("the claim on the target's partitions was not renewed in time")
            self._on_change()

    async def _trouble(self, doing: str, error: Errors.KafkaError, pause_s: float) -> None:
        is_refused = isinstance(error, Errors.TopicAuthorizationFailedError)
        self._is_forbidden = is_refused or isinstance(error, OptionError)
        remedy = "; grant the mirror Create, Describe, Read and Write on it" if is_refused else ""
        self._problems[doing] = f"{CLAIMS_TOPIC} of the target: {text_of(error)}{remedy}"
        if getattr(error, "invalid_metadata", False):
            self._target.manager.cluster.request_update()
        self._see_to_lapse()
        self._on_change()
        await self._guarded.net.sleep(pause_s * random.uniform(0.5, 1.0))


def boot_s() -> float:
    """Seconds of a clock that also runs while the machine is suspended, if the system has one."""
    return time.clock_gettime(_BOOT_CLOCK)


def claimed_by(partition: TopicPartition, claim: Claim) -> TargetClaimedError:
    """The error for a partition, or a whole topic, that another mirror which is alive has claimed."""
    topic, index = whole_of(partition)
    name = f"Topic {topic}" if index == WHOLE_TOPIC else f"Partition {topic}-{index}"
    since, renewed = (utc(ms) for ms in (claim.holder.since_ms, claim.renewed_ms))
    how, why = "", "has only one writer"
    if claim.name != partition:
        how = f" with {'identical' if claim.name == whole_of(partition) else 'translated'} offsets"
        why = "a partition with identical offsets has no other writer"
    return TargetClaimedError(
        f"{name} of the target is written by {claim.holder}{how}, since {since}, last claimed at {renewed}, and {why}."
        " Stop that mirror, or leave the topic out of one of the two"
    )


def new_holder(link: str, run: str = "", role: str = COPIER) -> Holder:
    """This process as a holder; with its own run if none is given."""
    own = uuid.uuid4().hex
    return Holder(own, link, run or own, socket.gethostname(), os.getpid(), int(time.time() * 1000), role)
