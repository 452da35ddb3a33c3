"""The claims log on the target: who looks at it, and a process that claims there what it writes (claims.py says how)."""

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
from tolerant_client.errors import OptionError, RecoveryExhaustedError, TargetClaimedError, text_of
from tolerant_client.mirror.state.claimant import Claimant
from tolerant_client.mirror.state.claims import (
    CLAIMS_TOPIC,
    COPIER,
    LEASE_MS,
    RENEW_MS,
    WHOLE_TOPIC,
    Claim,
    ClaimsLog,
    Holder,
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
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_PATIENCE_S = 60.0  # with a claims log that cannot be used
# That a start waits: whoever lives has renewed its claim by then, and is named as such.
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
    """What the claims log of a target says now; empty where no mirror ever claimed anything.

    Raises KafkaError, TopicAuthorizationFailedError among them.
    """
    log = ClaimsLog()
    topic = claims_topic(target)
    if not await topic.exists():
        return log
    follower = Follower(topic, log)
    await target.insist(f"reading {topic.what}", follower.read_to_end)
    return log


class Follower:
    """Reads the claims log in its order and hands every record to `log` once."""

    def __init__(self, topic: StateTopic, log: ClaimsLog | Claimant) -> None:
        self.position = -1  # the next offset to be read
        self.log_start = -1
        self._topic = topic
        self._log = log

    async def read_to_end(self) -> None:
        """Reads what is there now; raises KafkaError."""
        end = await self._topic.end()
        while self.position < end:
            if not await self.follow(0) and self.position < end:
                await self._topic.cluster.net.sleep(0.005)  # the high watermark is to come

    async def follow(self, max_wait_ms: int) -> bool:
        """Reads what is new, and waits for it so long at most; whether there was something.

        Raises OffsetOutOfRangeError where the log was made anew or cut: the caller begins anew.
        """
        if self.position < 0:
            self.position = self.log_start = await self._topic.start()
        part = await self._topic.fetch(self.position, max_wait_ms=max_wait_ms)
        before, self.log_start = self.position, part.log_start_offset
        for header, batch in iter_record_sets(part.records, from_offset=self.position):
            if not header.has_log_append_time:
                raise OptionError(
                    f"{CLAIMS_TOPIC} has records with times of their writers, so it cannot say when a claim was renewed:"
                    " delete that topic, the mirror makes it as it has to be"
                )
            for record in [] if header.is_control else decode_records(batch):
                found = decode_claims(record.key, record.value) if record.offset >= self.position else None
                if found is not None:
                    self._log.read(found, record.timestamp, record.offset)
            self.position = max(self.position, header.next_offset)
        return self.position > before


class Claims:
    """One holder at work: claims what is wanted, renews that, and says when it is over; on the event loop of `target`.

    It has connections of its own: a renewal does not wait behind what is copied.  Nothing goes out to `target` after the
    lease is over: what waits on its connections is dropped then.  `on_change` is called when something was granted, asked
    for or lost.  `spawn` runs a coroutine beside the caller.
    """

    def __init__(
        self, target: Cluster, holder: Holder, spawn: Callable[..., None], on_change: Callable[[], None]
    ) -> None:
        self.claimant = Claimant(holder)
        self.problem = ""  # why nothing can be claimed now
        self._is_forbidden = False  # and no waiting cures it
        self._guarded = target
        self._apart: Cluster | None = None
        self._spawn = spawn
        self._on_change = on_change
        self._is_running = False
        self._is_current = False  # all was read that was there when the claims began
        self._is_following = False
        self._is_ending = False
        self._ends_by = float("inf")  # what ends is waited for until then
        self._reader: Follower | None = None
        self._wakeup = WakeupNotifier(target.net)
        self._own_offset = -1  # of what it said last
        self._quiet_until = float("-inf")
        # Of holders that block us: the offset of what they had said when we saw them.
        self._first_seen: dict[str, int] = {}
        target.guard(self._may_send)

    def want(self, partitions: Iterable[TopicPartition]) -> None:
        """Claims these for as long as they are wanted."""
        self.claimant.want(partitions)
        self._run()

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """Releases what is not written any more and has nothing in flight."""
        self.claimant.leave(partitions)
        self._run()

    def holds(self, partition: TopicPartition) -> bool:
        """Whether it may be appended to now; to be asked at the last moment before."""
        return self.claimant.holds(partition, boot_s())

    def term(self, partition: TopicPartition) -> int | None:
        """As Claimant.term."""
        return self.claimant.term(partition, boot_s())

    def rivals(self) -> dict[TopicPartition, Claim]:
        """What is wanted and another run has: those holders that have renewed it since we saw them first.

        Nobody before the log was read up to what we have said of late: a renewal before that may be long over.
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

    async def take(self, names: Collection[TopicPartition], tell: Callable[[str], None]) -> None:
        """Claims all of these, waiting for holders that are gone, which is told once.

        Raises TargetClaimedError where one lives, and RecoveryExhaustedError where the claims log cannot be used.
        """
        self.want(names)
        self._first_seen = {}  # at a former try
        started, is_told = boot_s(), False
        while not all(self.holds(name) for name in names):
            waited_s = boot_s() - started
            if rivals := self.rivals():
                self.leave(names)
                raise claimed_by(*min(rivals.items()))
            if self.problem and (self._is_forbidden or waited_s > _PATIENCE_S):
                self.leave(names)
                raise RecoveryExhaustedError(f"The target could not be claimed for {waited_s:.0f} s: {self.problem}")
            if not is_told and waited_s > _TOLD_AFTER_S and self._is_current and (blocked := self.claimant.blocked):
                is_told = True
                claim = min(blocked.items())[1]
                tell(
                    f"waiting for {claim.holder}, which claimed the target last at {utc(claim.renewed_ms)}: its claim ends"
                    f" once it was silent for {LEASE_MS // 1000} s of our clock, unless it still runs"
                )
            await self._guarded.net.sleep(0.01)

    async def end(self, timeout_s: float = 4.0) -> None:
        """Says that the run is over, and waits until its other processes have released what they hold, or are gone.

        They have something to write down before (LinkCopier); several calls wait `timeout_s` in all.
        """
        if not self._is_running:
            return
        self._ends_by = min(self._ends_by, boot_s() + timeout_s)
        self._is_ending = True
        self.claimant.end()
        self._wakeup.notify()
        while boot_s() < self._ends_by and not (
            self.claimant.is_said and not self.claimant.log.names_of_run(self.claimant.holder)
        ):
            await self._guarded.net.sleep(0.02)
        self._is_ending = False

    async def released(self, timeout_s: float = 4.0) -> None:
        """Waits until nothing is claimed any more, where nothing is wanted, or the run is over; no longer than `timeout_s`."""
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
        """Appends what the claimant has to say, when it has."""
        claimant, pause_s = self.claimant, _FIRST_PAUSE_S
        try:
            while not claimant.is_said or self._is_ending:
                self._see_to_lapse()
                if not self._is_current or boot_s() < self._quiet_until or not claimant.is_due(boot_s()):
                    await self._wakeup(_TICK_S)
                    continue
                record, read_before = claimant.record(boot_s()), self._follower.position
                try:
                    offset = await claims_topic(self._target).put(record.holder.id.encode(), encode_claims(record))
                except Errors.KafkaError as error:
                    claimant.not_said()
                    await self._trouble(error, pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                self.problem, pause_s, self._own_offset = "", _FIRST_PAUSE_S, offset
                if read_before > offset:
                    self._start_anew()  # what was read before is not in the log any more
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
                if self._follower.log_start > self.claimant.log.silent_before:  # law D: deleted, or idle
                    self._quiet_until = boot_s() + LEASE_MS / 1000
                self._is_current = True
                self._wakeup.notify()
            else:
                is_more = await self._follower.follow(_POLL_MS)
                if self._follower.log_start > self._own_offset >= 0:
                    raise Errors.OffsetOutOfRangeError("what it has said last was deleted")
                if not is_more:
                    self._see_to_lapse()
                    return
        except Errors.OffsetOutOfRangeError:
            self._start_anew()
        except OptionError as error:
            await self._trouble(error, _LONGEST_PAUSE_S)
            return
        except Errors.UnknownTopicOrPartitionError as error:
            self._is_current = False  # it was deleted, and is made anew
            await self._trouble(error, _FIRST_PAUSE_S)
            return
        except Errors.KafkaError as error:
            await self._trouble(error, _LONGEST_PAUSE_S)
            return
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
        self.claimant.start_anew()
        self._follower.position, self._is_current, self._own_offset = -1, False, -1

    def _may_send(self) -> bool:
        if not self.claimant.has_lapsed(boot_s()):
            return True
        self._spawn(self._lapse)
        return False

    async def _lapse(self) -> None:
        self._see_to_lapse()

    def _see_to_lapse(self) -> None:
        """Law E: what could still go out, or is on its way, belongs to a lease that is over."""
        if self.claimant.has_lapsed(boot_s()):
            self.claimant.lapse()
            self._guarded.drop_connections("the claim on the target's partitions was not renewed in time")
            self._on_change()

    async def _trouble(self, error: Errors.KafkaError, pause_s: float) -> None:
        is_refused = isinstance(error, Errors.TopicAuthorizationFailedError)
        self._is_forbidden = is_refused or isinstance(error, OptionError)
        remedy = "; grant the mirror Create, Describe, Read and Write on it" if is_refused else ""
        self.problem = f"{CLAIMS_TOPIC} of the target: {text_of(error)}{remedy}"
        if getattr(error, "invalid_metadata", False):
            self._target.manager.cluster.request_update()
        self._see_to_lapse()
        self._on_change()
        await self._guarded.net.sleep(pause_s * random.uniform(0.5, 1.0))


def boot_s() -> float:
    """Seconds of a clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(_BOOT_CLOCK)


def claimed_by(partition: TopicPartition, claim: Claim) -> TargetClaimedError:
    """The error of whoever finds a partition, or a whole topic, claimed by another mirror that lives."""
    topic, index = whole_of(partition)
    name = f"Topic {topic}" if index == WHOLE_TOPIC else f"Partition {topic}-{index}"
    since, renewed = (utc(ms) for ms in (claim.holder.since_ms, claim.renewed_ms))
    how, why = "", "has one writer only"
    if claim.name != partition:
        how = f" with {'identical' if claim.name == whole_of(partition) else 'translated'} offsets"
        why = "what is written with identical offsets is written by nobody else"
    return TargetClaimedError(
        f"{name} of the target is written by {claim.holder}{how}, since {since}, claimed last at {renewed}, and {why}."
        " Stop that mirror, or leave the topic out of one of the two"
    )


def new_holder(link: str, run: str = "", role: str = COPIER) -> Holder:
    """This process as a holder; a run of its own where none is given."""
    own = uuid.uuid4().hex
    return Holder(own, link, run or own, socket.gethostname(), os.getpid(), int(time.time() * 1000), role)
