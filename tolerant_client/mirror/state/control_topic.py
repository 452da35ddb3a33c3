"""The topic on the target that keeps what holds for links: compacted, one partition (control_record.py says what is in it).

Laws:
- Writers look whether theirs counts, and change what does (update_control): two at once both have their way.
- The engine obeys within about a second, and looks before it writes anything that it has just derived from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import kafka.errors as Errors

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future
from tolerant_client.errors import OptionError, TolerantClientError, text_of
from tolerant_client.mirror.state.control_record import (
    CONTROL_TOPIC,
    Controls,
    controls_of,
    decode_control,
    encode_control,
    is_newer,
    newest_of,
    why_unreadable,
)
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.state_topic import COMPACTED, StateTopic
from tolerant_client.records import codecs
from tolerant_client.records.record_batch import Record, encode_batch

HIDDEN = f"we may not read topic {CONTROL_TOPIC} of the target: grant us Describe and Read on it"
UNKNOWN_ORDERS = "whether an operator has paused, limited or promoted the link is unknown"

_HIDDEN_FOR_S = 60.0  # a topic that we may not see is looked for again after that


def control_topic(cluster: Cluster) -> StateTopic:
    """The control topic of a cluster; a source calls its topics as the link does.  A failover must not wait for the second of two brokers."""
    name = cluster.topic_of(CONTROL_TOPIC)
    return StateTopic(cluster, name, COMPACTED, "the controls of links", insync_of_two=1, codec=codecs.GZIP)


class ControlWatch:
    """The control of one link as a running engine follows it: `value` is what was read last.

    On the event loop of `target`.  A look costs two small requests where nothing is new.
    """

    def __init__(self, target: Cluster, link: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.value = LinkControl()
        self.is_read = False
        self.link = link
        self._target = target
        self._clock = clock
        self.position = 0
        self._topic_id = ""
        self.newest: Record | None = None  # the record that counts
        self._hidden_until = float("-inf")
        self._reading: Future | None = None
        self._waiting: Future | None = None  # for a look that has not begun yet

    async def refresh(self) -> LinkControl:
        """What holds now: read after this was called; calls at the same time share a look.

        Raises OptionError for a record that is none of ours, and KafkaError.
        """
        if self._waiting is not None:
            await self._waiting
            return self.value
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
        return self.value

    @property
    def is_hidden(self) -> bool:
        """Whether the last look was not allowed: then nothing is known, and `value` says what was seen before."""
        return self._clock() < self._hidden_until

    async def require_not_promoted(self) -> None:
        """Looks, and raises LinkPromotedError for a link that may not write any more."""
        (await self.refresh()).require_not_promoted(self.link)

    async def _read(self) -> None:
        if self.is_hidden:
            return
        try:
            topic = control_topic(self._target)
            if await topic.exists():  # what it said last still holds
                await self._follow(topic)
        except Errors.TopicAuthorizationFailedError:
            self._hidden_until = self._clock() + _HIDDEN_FOR_S
        self.is_read = True

    async def _follow(self, topic: StateTopic) -> None:
        end = await topic.end()
        if end < self.position or topic.id != self._topic_id:
            self.position, self.newest, self._topic_id = 0, None, topic.id  # made anew
        if end > self.position:
            newest = newest_of(self.link, await topic.records(self.position, end), self.newest)
            if newest is not None and newest is not self.newest:
                self.value = self._as_of_our_life(_decoded(newest.value or b"", self.link, self._target))
            self.position, self.newest = end, newest

    def _as_of_our_life(self, control: LinkControl) -> LinkControl:
        """A process that slept through a promotion and the link's next life is of the life that was promoted."""
        is_later = self.is_read and control.generation != self.value.generation
        return (
            replace(control, is_promoted=True, is_fenced=True, generation=self.value.generation)
            if is_later
            else control
        )


async def read_control(target: Cluster, link: str) -> LinkControl:
    """What holds for a link; the default where nothing was ever said, and where we may not look.  Raises OptionError."""
    watch = ControlWatch(target, link)
    control = await watch.refresh()
    return replace(control, is_hidden=True) if watch.is_hidden else control


async def read_controls(cluster: Cluster, begun_of: Collection[str] = ()) -> Controls:
    """Of every link whose target this cluster is; where a link's newest record cannot be read, its former one, too.

    Of `begun` no more than the topics `begun_of`: of all links it is much.
    """
    return controls_of(await read_records(cluster), begun_of)


async def read_records(cluster: Cluster) -> list[Record]:
    """All records of the control topic; none where there is no such topic."""
    return await control_topic(cluster).read_all()


async def update_control(target: Cluster, link: str, change: Callable[[LinkControl], LinkControl]) -> LinkControl:
    """Makes a change to what holds, and returns what holds then; nothing is written where that is the same.

    Once it returns all in-sync replicas have it.  Raises OptionError where the topic cannot be made, its newest record
    is none of ours, or what is wanted could not be read again, and KafkaError.
    """
    watch = ControlWatch(target, link)
    current = await watch.refresh()
    if watch.is_hidden:  # what we wrote would take the place of what we may not see
        raise Errors.TopicAuthorizationFailedError(f"{CONTROL_TOPIC} of the {target.name} may not be read")
    wanted = change(current)
    if wanted == current:
        return current
    topic = control_topic(target)
    await topic.ensure()
    position, newest = watch.position, watch.newest
    while True:
        knew = 0 if newest is None else newest.offset + 1
        value = _readable(link, wanted, knew)
        offset = await write_record(topic, link, value)
        newest = newest_of(link, await topic.records(position, offset + 1), newest)
        if newest is None or newest.value == value:
            return wanted
        # Whoever wrote between our look and our record goes before us: our change is made to that.
        wanted, position = change(_decoded(newest.value or b"", link, target)), offset + 1


@contextmanager
def half_done(what: str) -> Iterator[None]:
    """Raises TolerantClientError for every KafkaError behind a control that says that `what` has begun.

    So what is refused, or cannot be reached, is told with how far the command has come; our own mistakes pass as they are.
    """
    try:
        yield
    except Errors.KafkaError as error:
        text = text_of(error)
        raise TolerantClientError(f"{text}; {what} is begun and not finished: run this again") from error


async def write_record(topic: StateTopic, link: str, value: bytes | None) -> int:
    """Appends a record of a link to the control topic, and returns its offset; written twice, it says the same."""
    try:
        return await topic.cluster.insist("writing the link's control", lambda: topic.put(link.encode(), value))
    except Errors.MessageSizeTooLargeError as error:
        size = len(encode_batch([Record(0, 0, link.encode(), value)], codec=topic.codec))
        raise Errors.MessageSizeTooLargeError(
            f"{topic.name} of the {topic.cluster.name} takes no record of {size:,} bytes, and what is remembered of link {link} is"
            f" that large: raise max.message.bytes of that topic to {_enough(size)} (kafka-configs.sh --alter --entity-type topics"
            f" --entity-name {topic.name} --add-config max.message.bytes={_enough(size)}), or copy its topics by several links"
        ) from error


def _enough(size: int) -> int:
    """A max.message.bytes that holds for long."""
    return 1 << (4 * size).bit_length()


def _readable(link: str, wanted: LinkControl, knew: int) -> bytes:
    """The value of a record that is written now.  One that could not be read again would stop every mirror of the target."""
    try:
        value = encode_control(wanted, int(time.time() * 1000), knew)
        why = why_unreadable(Record(0, 0, link.encode(), value))
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise OptionError(
            f"Nothing is written down of link {link}, since {CONTROL_TOPIC} could not be read after it: what it would say has a"
            f" name that is not UTF-8, a number above 2^63-1, or more than a cluster has ({why.partition(';')[0]})"
        )
    return value


def _decoded(value: bytes, link: str, target: Cluster) -> LinkControl:
    """What the record of a link says; raises OptionError with the way out."""
    try:
        return decode_control(value)
    except OptionError as error:
        if is_newer(value):
            raise
        raise OptionError(
            f"{text_of(error)}, under the name of link {link}: take away the right to write there from whoever wrote it, and"
            f" run tolerant-kafka repair {link_options(link, target)}"
        ) from error
