"""What a flow does besides copying records: group offsets, topic configurations, ACLs, heartbeats, checkpoints.

Laws:
- Each duty has an interval, and what fails is a warning: it is tried again an interval later.
- A duty that is late is done once, not once for each interval that it missed.
- Duties have connections and a thread of their own: they wait for no record, and no record for them.  What others
  measure the mirror's life by (heartbeats) waits for no other duty either.
- Nothing is done for a link that is promoted: its target has a life of its own.
- Partitions that the mirror has stopped may be no copies: their groups and settings are left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, LinkPromotedError
from tolerant_client.mirror.state.control_topic import ControlWatch

_log = logging.getLogger(__name__)
_LOOK_S = 0.25  # between two looks at the timetable


@dataclass(frozen=True)
class Duty:
    """Something done every `interval_s` seconds; `round` does it once, on the loop of source and target.

    It gets the two clusters, and the partitions that the mirror has stopped.  One that `is_apart` has a thread of its own.
    """

    name: str
    interval_s: float
    round: Callable[[Cluster, Cluster, Collection[TopicPartition]], Awaitable[object]]
    is_apart: bool = False


def lanes(duties: Iterable[Duty]) -> list[list[Duty]]:
    """The duties by the thread that does them, in their order: each that is apart alone, the others together.  Pure."""
    every = list(duties)
    together = [duty for duty in every if not duty.is_apart]
    return [*([duty] for duty in every if duty.is_apart), *([together] if together else [])]


class Timetable:
    """When which duty is due: each at once, then an interval after its last round has begun.  Pure."""

    def __init__(self, duties: Iterable[Duty]) -> None:
        self._due_at = dict.fromkeys(duties, float("-inf"))

    def due(self, now: float) -> list[Duty]:
        """Those whose time has come, the one that has waited longest first."""
        return sorted((d for d, at in self._due_at.items() if at <= now), key=lambda d: self._due_at[d])

    def begun(self, duty: Duty, now: float) -> None:
        self._due_at[duty] = now + duty.interval_s


class DutyThread:
    """Does the duties of one link until it is closed.

    `connect` makes clients of source and target on one event loop; after an error it is called again.
    `stopped` are the partitions that the mirror has stopped: set it before and whenever that changes.
    `tell` gets (duty's name, what its round returned, None) or (name, None, the error).
    """

    def __init__(
        self,
        link: str,
        duties: Iterable[Duty],
        connect: Callable[[], tuple[Cluster, Cluster]],
        tell: Callable[[str, object, Exception | None], None],
        stopped: Collection[TopicPartition] = (),
    ) -> None:
        self.stopped = stopped
        self._link = link
        self._timetable = Timetable(duties)
        self._connect = connect
        self._tell = tell
        self._both: tuple[Cluster, Cluster, ControlWatch] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"duties-{link}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Lets it end after the round that runs now."""
        self._stop.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stops, and waits for the end; a round that takes longer than `timeout_s` is left to itself."""
        self.stop()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            for duty in self._timetable.due(time.monotonic()):
                if not self._stop.is_set():
                    self._timetable.begun(duty, time.monotonic())
                    self._do(duty)
            self._stop.wait(_LOOK_S)
        self._disconnect()

    def _do(self, duty: Duty) -> None:
        try:
            if self._both is None:
                source, target = self._connect()
                self._both = source, target, ControlWatch(target, self._link)
            source, target, control = self._both
            source.run(control.refresh).require_not_promoted(self._link)
            report = source.run(duty.round, source, target, self.stopped)
        except LinkPromotedError:
            pass  # the mirror itself says so
        except Exception as error:  # whatever it was, the other duties are not to suffer
            if not isinstance(error, (KafkaError, OSError, ValueError)):
                _log.exception("Duty %s of link %s", duty.name, self._link)
            if isinstance(error, ClusterUnreachableError) or not isinstance(error, KafkaError):
                self._disconnect()
            self._tell(duty.name, None, error)
        else:
            self._tell(duty.name, report, None)

    def _disconnect(self) -> None:
        both, self._both = self._both, None
        if both is None:
            return
        source, target, _ = both
        try:
            target.close()
            source.close()
        except Exception:  # the thread goes on, with new ones
            _log.exception("Duties of link %s", self._link)
