"""The topic on the target with the controls of links: compacted, one partition (control_record.py has the format).

Laws:
- A writer checks whether its record counts; if not, it applies its change to the one that does (ControlWatch.update).  So two
  concurrent changes both hold.
- The engine obeys within 2 seconds, and checks the control before it writes anything that it has just derived from the log.
- A control that may not be read says nothing: what was read before is not true any more.  So no mirror starts or copies without it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.errors import LinkPromotedError, OptionError, OrdersHiddenError, TolerantClientError, text_of
from tolerant_client.mirror.state.control_record import (
    CONTROL_TOPIC,
    Controls,
    controls_of,
    decode_control,
    encode_control,
    is_newer,
    newest_of,
    telling,
    why_unreadable,
)
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch

_HIDDEN = f"we may not read topic {CONTROL_TOPIC} of the target, where operators pause and promote links"
_READABLE = "grant us Describe and Read on it"
HIDDEN = f"{_HIDDEN}; {_READABLE}"
UNKNOWN_ORDERS = "whether an operator has paused, limited or promoted the link is unknown"
_KEPT_MS: Final = "14400000"  # 4 hours
# Who starts reads from the first record on, and a copier writes one every 30 s: the cleaner comes every few hours, not after log.roll.ms, a
# week.  Until then the former records are there for repair, and for a writer whose record does not count.
_CONFIG: Final = {
    **COMPACTED,
    "segment.ms": _KEPT_MS,
    "min.compaction.lag.ms": _KEPT_MS,
    "min.cleanable.dirty.ratio": "0.01",
}
FORGOTTEN = (
    f"{CONTROL_TOPIC} of the target says nothing of the link (any more): the topic was deleted since its mirror started, or that"
    " may not write there. So what it copies and what was ordered is unknown, and it gets no orders. Stop that mirror and start it"
    " again with Create, Read and Write on that topic"
)


def control_topic(cluster: Cluster) -> StateTopic:
    """The control topic of a cluster, also of a source, which names its topics as the link does.

    One in-sync replica of two is enough, since a failover must not wait for the second of two brokers.
    """
    name = cluster.topic_of(CONTROL_TOPIC)
    return StateTopic(cluster, name, _CONFIG, "the controls of links", insync_of_two=1, codec=codecs.GZIP)


def orders_hidden() -> OrdersHiddenError:
    """The error for a control topic that the target does not let us read."""
    return OrdersHiddenError(_HIDDEN).advising(_READABLE)


def start_without_orders(link: str) -> OrdersHiddenError:
    """The error for a link that does not start, since its orders are hidden from us."""
    return OrdersHiddenError(f"Link {link} does not start, since {UNKNOWN_ORDERS}: {_HIDDEN}").advising(_READABLE)


class ControlFollower(ABC):
    """Follows the control topic of a cluster, which may be deleted and created again: everything before `position` was read.

    A new leader may lack the newest records, and have others in their place: then all is read again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.position = 0
        self._is_there = False
        self._read_of: tuple[str, list[int]] = ("", [])  # the topic's id and leader epochs
        self._reading: Future | None = None
        self._waiting: Future | None = None  # for a read that has not begun yet

    async def catch_up(self) -> None:
        """As `follow`, for calls at the same time: they share a read, which begins after each of them."""
        if self._waiting is not None:
            await self._waiting
            return
        waiting = self._waiting = Future()
        while self._reading is not None:
            await self._reading  # it began before we were called
        self._waiting = None
        reading = self._reading = Future()
        try:
            await self._read()
        except BaseException as error:
            waiting.failure(error)
            raise
        finally:
            self._reading = None
            reading.success(None)
        waiting.success(None)

    async def _read(self) -> None:
        await self.follow()

    async def follow(self) -> None:
        """Reads what is new; two small requests if nothing is.  Raises KafkaError."""
        topic = control_topic(self.cluster)
        self._is_there = await topic.exists()
        there = (topic.id, topic.leader_epochs) if self._is_there else ("", [])
        end = await topic.end() if self._is_there else 0
        is_other = end < self.position or there != self._read_of
        position = 0 if is_other else self.position
        if is_other or end > position:
            self._take(await topic.records(position, end) if end > position else [], is_other)
        self.position, self._read_of = end, there

    async def changed(self, wait_ms: int) -> None:
        """Waits until the topic has a new record, or `wait_ms` are over."""
        if self._is_there:
            await control_topic(self.cluster).fetch(self.position, max_wait_ms=wait_ms)
        else:
            await self.cluster.net.sleep(wait_ms / 1000)

    @abstractmethod
    def _take(self, records: list[Record], is_other: bool) -> None:
        """Takes the next records; `is_other`: those of another log, which count instead of all that were read."""


class ControlWatch(ControlFollower):
    """The control of one link as a running engine follows it: `value` was read last.

    `generation` is that of the life of the link (LinkControl) for which the engine was started; None: the one that it reads first.  On the
    event loop of `target`.
    """

    def __init__(self, target: Cluster, link: str, generation: int | None = None) -> None:
        super().__init__(target)
        self.value = LinkControl()
        self.is_read = False
        self.link = link
        self._generation = generation
        self.newest: Record | None = None  # the record that counts
        self._was_written = False

    async def refresh(self) -> LinkControl:
        """The present control, read after this call began; concurrent calls share one read.

        Raises OrdersHiddenError if we may not read it, OptionError for a record that is not ours, and KafkaError.
        """
        await self.catch_up()
        return self.value

    @property
    def is_forgotten(self) -> bool:
        """Whether the topic no longer says what the link copies, though it did: `value` is what was read before."""
        return self._was_written and (self.newest is None or self.value.is_unwritten)

    async def require_not_promoted(self) -> None:
        """Reads the control; raises LinkPromotedError for a link that may not write any more."""
        (await self.refresh()).require_not_promoted(self.link, self.cluster)

    async def update(self, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
        """Applies a change to what the record that counts says, and returns the result; writes nothing if nothing changes.

        It reads what was appended since the last read alone.  Once it returns, all in-sync replicas have the record.  Raises OptionError
        if the topic cannot be created, its newest record is not ours, or the new one could not be read again; KafkaError.
        """
        await self.refresh()
        position, newest = self.position, self.newest  # a later read, for another caller, moves them
        current = _said_by(newest, self.link, self.cluster)  # not `value`, which is of our life
        wanted = change(current)
        if wanted == current:
            return current
        topic = control_topic(self.cluster)
        await topic.ensure()
        while True:
            knew = 0 if newest is None else newest.offset + 1
            value = _readable(self.link, wanted, knew)
            offset = await write_record(topic, self.link, value)
            newest = newest_of(self.link, await topic.records(position, offset + 1), newest)
            if newest is None or newest.value == value:
                return wanted
            # A record written between our read and ours counts: apply our change to that one.
            wanted, position = change(_said_by(newest, self.link, self.cluster)), offset + 1

    async def _read(self) -> None:
        try:
            await self.follow()
        except Errors.TopicAuthorizationFailedError as error:
            raise orders_hidden() from error
        self.is_read = True

    def _take(self, records: list[Record], is_other: bool) -> None:
        newest = newest_of(self.link, records, None if is_other else self.newest)  # without one, `value` still holds
        if newest is not None and newest is not self.newest:
            self.value = self._as_of_our_life(_said_by(newest, self.link, self.cluster))
            self._was_written |= not self.value.is_unwritten
        self.newest = newest

    def _as_of_our_life(self, control: LinkControl) -> LinkControl:
        """A process that slept through a promotion and the start of the next generation belongs to the promoted generation.

        So does one that was only started by then.
        """
        ours, is_ours = self.value.generation, control.generation == self.value.generation
        if not self.is_read:
            ours = control.generation if self._generation is None else self._generation
            is_ours = control.generation <= ours  # before that, its control was lost
        return control if is_ours else replace(control, is_promotion_begun=True, is_fenced=True, generation=ours)


class ControlsWatch(ControlFollower):
    """The controls of all links into a cluster, for who asks for them again: then it reads what was appended since.

    On the event loop of the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._records: list[Record] = []
        self._last: tuple[Collection[str] | None, Controls] | None = None

    async def read(self, begun_of: Collection[str] | None = ()) -> Controls:
        """As read_controls, read after this call began; the same object if nothing was appended since the last call for these topics."""
        await self.catch_up()
        if self._last is None or self._last[0] != begun_of:
            self._last = begun_of, controls_of(self._records, begun_of)
        return self._last[1]

    def _take(self, records: list[Record], is_other: bool) -> None:
        self._last = None
        self._records = telling([*([] if is_other else self._records), *records])


async def read_control(target: Cluster, link: str, generation: int | None = None) -> LinkControl:
    """The control of a link, as a process of this `generation` reads it; the default if there is none, or if it is_hidden from us.

    Raises OptionError and KafkaError.
    """
    try:
        return await ControlWatch(target, link, generation).refresh()
    except OrdersHiddenError:
        return LinkControl(is_hidden=True)


async def read_controls(cluster: Cluster, begun_of: Collection[str] | None = ()) -> Controls:
    """The controls of all links into this cluster; for a link whose newest record is unreadable also the one before it.

    `begun` has only the topics `begun_of`: for all links it would be large.  None: of all topics.
    """
    return controls_of(await read_records(cluster), begun_of)


async def read_control_and_others(target: Cluster, link: str) -> tuple[LinkControl, Mapping[str, LinkControl]]:
    """The control of a link as read_control, and those of all links by one read of the topic; none if they are hidden from us."""
    try:
        records = await read_records(target)
    except Errors.TopicAuthorizationFailedError:
        return LinkControl(is_hidden=True), {}
    return _said_by(newest_of(link, records), link, target), controls_of(records, None).links


async def read_records(cluster: Cluster) -> list[Record]:
    """All records of the control topic; none if there is no such topic."""
    return await control_topic(cluster).read_all()


async def update_control(target: Cluster, link: str, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
    """As ControlWatch.update, for who does not follow the control: it reads the whole topic."""
    return await ControlWatch(target, link).update(change)


class NothingWrittenError(OptionError):
    """A command has written nothing: the control of its link no longer says what it did, or may not be written."""


@contextmanager
def half_done(what: str) -> Iterator[None]:
    """Raises TolerantClientError for every KafkaError after the control says that `what` has begun.

    Not for NothingWrittenError, nor for LinkPromotedError, for another command does it then, or has done it.

    So a refusal or an unreachable cluster is reported together with how far the command came; our own mistakes pass as they are.
    """
    try:
        yield
    except (NothingWrittenError, LinkPromotedError):
        raise
    except Errors.KafkaError as error:
        text = text_of(error)
        raise TolerantClientError(f"{text}; {what} has begun and is not finished: run this again") from error


async def write_record(topic: StateTopic, link: str, value: bytes | None) -> int:
    """Appends a record of a link to the control topic and returns its offset; written twice, it has the same meaning."""
    try:
        return await topic.cluster.insist("writing the link's control", lambda: topic.put(link.encode(), value))
    except Errors.MessageSizeTooLargeError as error:
        size = len(encode_batch([Record(0, 0, link.encode(), value)], codec=topic.codec))
        raise Errors.MessageSizeTooLargeError(
            f"{topic.name} of the {topic.cluster.name} takes no record of {size:,} bytes, and the control of link {link} is that"
            f" large: raise max.message.bytes of that topic to {_enough(size)} (kafka-configs.sh --alter --entity-type topics"
            f" --entity-name {topic.name} --add-config max.message.bytes={_enough(size)}), or copy its topics by several links"
        ) from error


def _enough(size: int) -> int:
    """A max.message.bytes with room to grow."""
    return 1 << (4 * size).bit_length()


def _readable(link: str, wanted: LinkControl, knew: int) -> bytes:
    """The value of a record to write now.  One that could not be read again would stop every mirror of the target."""
    try:
        value = encode_control(wanted, int(time.time() * 1000), knew)
        why = why_unreadable(Record(0, 0, link.encode(), value))
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise OptionError(
            f"Nothing is written for link {link}, since its record in {CONTROL_TOPIC} could not be read again: it would have a"
            f" name that is not UTF-8, a number above 2^63-1, or more than a cluster has ({why.partition(';')[0]})"
        )
    return value


def _said_by(record: Record | None, link: str, target: Cluster) -> LinkControl:
    """What a record of the link says; the default without one."""
    return LinkControl() if record is None else _decoded(record.value or b"", link, target)


def _decoded(value: bytes, link: str, target: Cluster) -> LinkControl:
    """The control in a link's record; raises OptionError with the remedy."""
    try:
        return decode_control(value)
    except OptionError as error:
        if is_newer(value):
            raise
        raise OptionError(f"{text_of(error)}, under the name of link {link}").advising(
            "take away the right to write there from whoever wrote it, and run tolerant-kafka repair"
            f" {link_options(link, target)}"
        ) from error
