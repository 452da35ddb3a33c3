"""Tells a client when the link to its standby is promoted.

Laws:
- It has a thread and an event loop of its own: a standby whose name resolves slowly blocks an event loop, and the client's never waits
  for it.  Nobody waits for that thread either: a client that is closed ends it as soon as the resolver lets go.
- Only the control of the link decides (control_topic.py), never the client: neither silence of the source nor its own errors move it.
- A link is promoted once it is fenced, too: until then a process of it may still write to the standby.
- A client has no life that a promotion ends, as an engine has: only the newest control counts.  One of a later generation that is
  not promoted tells of a link that copies again, and the client stays.
- Whoever moves must know where the copies end, else it could pass over records.  A control that does not tell is followed by nobody
  in place; a client that is made then begins at the standby, where its group's offsets are.
- A client follows a link that copies from its own cluster, as far as both tell their ids: another link's promotion says nothing of
  this client's records.  Where the link does not tell its id, the client stays; every cluster that can be mirrored has one.  A client
  that has not reached its own cluster has no position there that could be wrong: it moves, with a warning.
- While the standby does not respond, refuses us or hides the control, or the link cannot be followed, nothing is known and nothing
  happens; it is asked again, and the log says each reason once.
- A link that failback has prepared, and that has not run yet, is one to follow: failback is for identical offsets only.
- A promotion is new to a client that was told just before that there is none, if its record is new, too: whoever was frozen, or cut off, for
  a moment may hear of one that was undone meanwhile.  Of clocks that differ, or a standby that failed between, nothing is new.
- It ends with its client, also with one that was never closed.
- One request waits at the standby, for at most WAIT_MS: it costs next to nothing, and tells of a promotion at once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import cached_property
from typing import Any, Final, Protocol

import kafka.errors as Errors

from tolerant_client.cluster.admin.groups import may_not_read
from tolerant_client.cluster.admin.topics import READ, not_allowed
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import Future, NetworkSelector
from tolerant_client.cluster.patience import Backoff
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.standby.copy_watch import CopyWatch
from tolerant_client.mirror.state.control_topic import ControlWatch, read_controls
from tolerant_client.mirror.state.link_control import LinkControl, listed
from tolerant_client.mirror.state.link_topics import some
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.stock.held_batches import HeldBatches

log = logging.getLogger(__name__)

WAIT_MS: Final = 10_000
FIRST_WORD_S: Final = 2.0  # for which a client waits until a cluster tells of a promotion
PROMPT_S: Final = 0.3  # instead, where that is hardly to be expected, and the cluster may be lost
NEWS_S: Final = 15.0  # since a link was seen unpromoted: its promotion is hardly undone already
WRITTEN_S: Final = 3.0  # since the record of a promotion that has just happened was written
_SOME_TOPIC: Final = "orders"
_NUMBERS: Final = re.compile(r"\d+")


class NewestControl(ControlWatch):
    """What the newest record says, whatever generation was read before."""

    def _as_of_our_life(self, control: LinkControl) -> LinkControl:
        return control


class Follower(Protocol):
    """Who wants to know of the promotion; called in the watch's thread."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is still anybody who wants to know."""

    def heard(self, link: str, control: LinkControl) -> None:
        """Takes note of the control of a link; raises OptionError if it is none that can be followed."""

    def needs(self, control: LinkControl) -> set[str]:
        """The topics of the link that the client will read on the standby."""

    @property
    def group(self) -> str | None:
        """The group that a consumer will join or commit for on the standby."""

    def promoted(self, link: str, control: LinkControl, *, is_new: bool) -> None:
        """The link is promoted and fenced, and tells where its copies end; `is_new`: just now."""


class LinkWatch:
    """The link `link` into the cluster that `standby` (kafka-python's keys) connects to."""

    pause = Backoff(0.1, 1.0)  # after failures

    def __init__(
        self, standby: Mapping[str, Any], link: str, *, name: str = "standby", patience_ms: int = 30_000
    ) -> None:
        self._to = standby
        self._net = NetworkSelector(slow_task_threshold_secs=0)  # a slow resolver holds up nobody else here
        self.cluster = Cluster(standby, self._net, name=name, patience_ms=patience_ms)
        self._clusters = [self.cluster]  # which end with this
        self._unknown_link = ""  # what to say of a link that the standby does not know
        self.link = link
        self._patience_ms = patience_ms
        self._told: set[str] = set()  # reasons why nothing is known
        self._checked: set[str] = set()  # topics
        self._is_group_checked = False
        self._follower: futures.Future[Follower | None] = futures.Future()
        self._is_closing = False
        self._over = Future()  # on its event loop

    @cached_property
    def _control(self) -> NewestControl:
        return NewestControl(self.cluster, self.link)

    def start(self) -> futures.Future[LinkControl]:
        """Begins to ask, and goes on after `follow`; returns what is told first: a control, or why there is none."""
        first: futures.Future[LinkControl] = futures.Future()
        threading.Thread(target=self._run, args=(first,), name=f"kafka-link-{self.link}", daemon=True).start()
        return first

    def report_copies(self, sender: Any, timeout_ms: float, check: Callable[[LinkControl], None]) -> HeldBatches:
        """What a producer with `acks="mirrored"` holds; ends as the standby has it.  Before `follow`."""
        # The long poll for a new control would hold up a connection.
        cluster = Cluster(self._to, self._net, name="standby", patience_ms=self._patience_ms)
        self._clusters.append(cluster)
        copies = CopyWatch(cluster, NewestControl(cluster, self.link), check)
        held = HeldBatches(sender, timeout_ms, copies.wake)
        self._net.call_soon_with_future(copies.run, held).add_errback(_log_failure)
        return held

    def follow(self, follower: Follower) -> None:
        """Tells `follower` from now on."""
        self._follower.set_result(follower)

    def close(self) -> None:
        """Ends the thread and the connections to the standby, without waiting for them; from any thread."""
        if self.is_closed:
            return
        self._is_closing = True
        if not self._follower.done():
            self._follower.set_result(None)
        with contextlib.suppress(RuntimeError):  # it has just ended
            self._net.call_soon_threadsafe(self._end)

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or has ended."""
        return self._is_closing or bool(self.cluster.manager.closed)

    def _end(self, _: object = None) -> None:
        if not self._over.is_done:
            self._over.success(None)

    def _run(self, first: futures.Future[LinkControl]) -> None:
        try:
            self._net.call_soon_with_future(self._watch, first).add_both(self._end)
            self._net.poll(future=self._over)
        finally:
            for cluster in self._clusters:
                cluster.close()
            self._net.drain()
            self._net.close()

    async def _watch(self, first: futures.Future[LinkControl]) -> None:
        try:
            try:
                first.set_result(await self.control())
            except Exception as error:
                if not isinstance(error, OptionError):  # else whoever waits raises it
                    self._tell(error)
                first.set_exception(error)
            if (follower := self._follower.result()) is not None:  # nobody else is on this event loop
                promotion = await self.promoted(follower)
                if promotion is not None:
                    control, is_new = promotion
                    follower.promoted(self.link, control, is_new=is_new)
        except OptionError as error:
            log.error("%s", text_of(error))
        except Exception:
            log.exception("The client does not follow link %s any more", self.link)

    def _tell(self, error: Exception) -> None:
        reason = _NUMBERS.sub("", text_of(error))
        if reason in self._told or self.is_closed:
            return
        self._told.add(reason)
        if isinstance(error, OptionError):
            log.warning("%s", text_of(error))
        else:
            log.warning("%s: %s", self.unknown, text_of(error))

    @property
    def standby(self) -> str:
        """The standby with its address, in words."""
        return f"the standby at {listed(self.cluster.bootstrap_servers)}"

    @property
    def unknown(self) -> str:
        """What to say while the standby tells nothing."""
        return f"Whether link {self.link} is promoted is unknown"

    async def control(self) -> LinkControl:
        """The present control; raises OptionError for a link that clients cannot follow, KafkaError if the standby does not respond."""
        await self.cluster.connect(self._patience_ms)
        control = await self._control.refresh()
        if control.is_unwritten:
            self._unknown_link = self._unknown_link or await self._say_unknown()
            raise OptionError(self._unknown_link)
        self._unknown_link = ""
        return self.require_followed(control)

    async def _say_unknown(self) -> str:
        others = sorted(
            name for name, known in (await read_controls(self.cluster)).links.items() if not known.is_unwritten
        )
        has = f"its links are {some(others)}" if others else "it has no link"
        return (
            f"{self.standby[0].upper()}{self.standby[1:]} knows no link {self.link}; {has}: check link, and that standby is the link's"
            " target, or start its mirror first"
        )

    def require_followed(self, control: LinkControl) -> LinkControl:
        """The control of a link that clients can follow; else raises OptionError."""
        if control.map_id is not None:
            raise OptionError(
                f"Link {self.link} has translated offsets, and a client cannot keep its positions there: follow a link with identical ones"
            )
        if control.is_promoted and not control.is_identical:
            raise OptionError(
                f"Link {self.link} was promoted and has never run with identical offsets, so nothing tells where a client's"
                " positions are there: follow another link"
            )
        if control.topics is not None and LinkTopics.from_json(control.topics).to_target(_SOME_TOPIC) != _SOME_TOPIC:
            raise OptionError(
                f"Link {self.link} gives topics other names on the standby: a client can follow a link that keeps their names only"
            )
        return control

    async def promoted(self, follower: Follower) -> tuple[LinkControl, bool] | None:
        """The control of the link once it is promoted and fenced, however long that takes, and whether that has just happened.

        None after close(), or if not wanted.  Raises OptionError for a promoted link whose control does not tell where its copies end.
        """
        failures, unpromoted_s = 0, -math.inf
        while follower.is_wanted and not self.is_closed:
            try:
                control = await self.control()
                if not control.is_unwritten:
                    follower.heard(self.link, control)
                if control.is_promoted:
                    break
                unpromoted_s = time.monotonic()
                await self._check_rights(follower.needs(control) - self._checked, follower.group)
                await self._changed()
                failures = 0
                self._told.clear()
            except Exception as error:
                failures, unpromoted_s = failures + 1, -math.inf
                self._tell(error)
                if self.is_closed:
                    return None
                await self.cluster.net.sleep(self.pause.pause_s(failures))
        else:
            return None
        if not control.copied_until and (control.begun or control.copied):
            raise OptionError(
                f"Link {self.link} is promoted, and its control does not tell where its copies end: the client stays where it is. Make a"
                " new one, which begins at the standby"
            )
        is_new = time.monotonic() - unpromoted_s < NEWS_S and control.is_younger(WRITTEN_S, time.time())
        return control, is_new

    async def _check_rights(self, topics: set[str], group: str | None) -> None:
        """Warns once of topics that the client could not read after the promotion, and of its group."""
        self._checked |= topics
        group, self._is_group_checked = None if self._is_group_checked else group, True
        try:
            refused = await not_allowed(self.cluster, topics, READ)
            if group is not None and await may_not_read(self.cluster, group):
                refused.append(f"group {group}")
        except Errors.KafkaError as error:
            log.debug("The %s does not tell what the client may read: %s", self.cluster.name, error)
            return
        if refused:
            log.warning(
                "The client may not read %s on the %s: grant Read, or it cannot continue there after a promotion",
                ", ".join(refused),
                self.cluster.name,
            )

    async def _changed(self) -> None:
        """Waits until the control topic has a new record, or WAIT_MS are over."""
        await self._control.changed(WAIT_MS)


def _log_failure(error: BaseException) -> None:
    if isinstance(error, Exception):  # else its event loop has ended
        log.error("What the standby has is not known any more", exc_info=error)
