"""What a flow does besides copying records: group offsets, topic configurations, ACLs, heartbeats, checkpoints.

Laws:
- Each duty has an interval.  A duty that fails gives a warning and is tried again after its interval, or after AGAIN_S if that is
  shorter: an outage is over sooner than a long interval, and its warning should be.
- A duty that is late runs once, not once for each interval that it missed.
- Duties have their own connections and thread: they never wait for records, and records never wait for them.
  Heartbeats, by which others measure whether the mirror is alive, do not wait for other duties either.
- No duty runs for a promoted link: its target is independent.
- Duties leave out the groups and settings of partitions that the mirror has stopped: those may not be copies.
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
AGAIN_S = 30.0  # at most, after a round failed
_LOOK_S = 0.25  # between two checks of the timetable


@dataclass(frozen=True)
class Duty:
    """A task that runs every `interval_s` seconds; `round` runs it once, on the event loop of source and target.

    `round` gets the two clusters and the partitions that the mirror has stopped.  A duty that `is_apart` has its own thread.
    """

    name: str
    interval_s: float
    round: Callable[[Cluster, Cluster, Collection[TopicPartition]], Awaitable[object]]
    is_apart: bool = False


def lanes(duties: Iterable[Duty]) -> list[list[Duty]]:
    """The duties grouped by thread, in their order: one group for each duty that is apart, one for all others.  Pure."""
    every = list(duties)
    together = [duty for duty in every if not duty.is_apart]
    return [*([duty] for duty in every if duty.is_apart), *([together] if together else [])]


class Timetable:
    """When each duty is due: at once, then one interval after its last round began, or AGAIN_S after it failed.  Pure."""

    def __init__(self, duties: Iterable[Duty]) -> None:
        self._due_at = dict.fromkeys(duties, float("-inf"))

    def due(self, now: float) -> list[Duty]:
        """The duties that are due, the one that has waited longest first."""
        return sorted((d for d, at in self._due_at.items() if at <= now), key=lambda d: self._due_at[d])

    def begun(self, duty: Duty, now: float) -> None:
        self._due_at[duty] = now + duty.interval_s

    def failed(self, duty: Duty, now: float) -> None:
        self._due_at[duty] = min(self._due_at[duty], now + AGAIN_S)


class DutyThread:
    """Does the duties of one link until it is closed.

    `connect` creates clients of source and target on one event loop; it is called again after an error.
    `stopped` are the partitions that the mirror has stopped; the caller updates it whenever that changes.
    `tell` gets (name of the duty, result of its round, None) or (name, None, error).
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
        """Ends the thread after the current round."""
        self._stop.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stops the thread and waits for its end; a round that takes longer than `timeout_s` is not waited for."""
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
            source.run(control.refresh).require_not_promoted(self._link, target, source)
            report = source.run(duty.round, source, target, self.stopped)
        except LinkPromotedError:
            pass  # the mirror itself reports this
        except Exception as error:  # an error of any kind must not stop the other duties
            if not isinstance(error, (KafkaError, OSError, ValueError)):
                _log.exception("Duty %s of link %s", duty.name, self._link)
            if isinstance(error, ClusterUnreachableError) or not isinstance(error, KafkaError):
                self._disconnect()
            self._timetable.failed(duty, time.monotonic())
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
        except Exception:  # the thread continues with new clients
            _log.exception("Duties of link %s", self._link)
