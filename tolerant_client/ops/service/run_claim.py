"""A mirror's own claim: the process that was started holds the topics that it copies, for as long as it runs.

If two mirrors start at once, one gets all its topics, and the other is refused before it writes anything.  The
processes of the tasks claim what they write (mirror/state/claims.py); this claim is also the mirror's heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.cluster.event_loop import NetworkSelector
from tolerant_client.mirror.engine.identical.unread import LATE_S
from tolerant_client.mirror.state.claims import Claim
from tolerant_client.mirror.state.claims_record import MIRROR, WHOLE_TOPIC, Waiting, claimed_part, whole_of
from tolerant_client.mirror.state.claims_topic import Claims, claimed_by, new_holder
from tolerant_client.ops.printing import echo
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.standing import carried
from tolerant_client.security.kafka_config import kafka_python_config


class RunClaim:
    """One run of a mirror, on its own thread; `target` are Java client properties."""

    def __init__(self, target: Mapping[str, str], link: str, run: str, *, is_translated: bool = False) -> None:
        self._link = link
        self._is_translated = is_translated
        self._standing: dict[TopicPartition, Waiting] = {}
        self._acked: Mapping[TopicPartition, int] = {}
        self.unsettled: Collection[TopicPartition] = ()  # once it has ended: what was sent there may still be appended
        self._net = NetworkSelector(client_id="tolerant-mirror-claims")
        self._target = Cluster(kafka_python_config(target), self._net, name="target")
        self._claims = Claims(self._target, new_holder(link, run, MIRROR), self._spawn, lambda: None)
        self._net.start()

    def __enter__(self) -> RunClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, topics: Collection[str], is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Claims topics of the target; waits for a mirror that is gone, and raises the errors of Claims.take."""
        whole = [TopicPartition(topic, WHOLE_TOPIC) for topic in topics]
        names = [claimed_part(name, self._link) for name in whole] if self._is_translated else whole
        self._net.run(self._claims.take, names, lambda text: echo(f"tolerant-kafka: {text}", err=True), is_stopping)

    def require_held(self) -> None:
        """Raises TargetClaimedError if another mirror has taken what this one had claimed, because it was frozen or cut off."""

        async def rivals() -> dict[TopicPartition, Claim]:
            return self._claims.rivals()

        if found := self._net.run(rivals):
            raise claimed_by(*min(found.items()))

    def tell(self, report: TaskReport) -> None:
        """Sets what the mirror's heartbeat says about partitions that do not move: those that wait, and those that need a person."""
        now_ms, before = int(time.time() * 1000), self._standing
        blocked = {
            p: Waiting(
                why,
                before[p].since_ms if p in before and before[p].reason == why else now_ms,
                is_blocked=True,
                remedy=report.remedies.get(p, ""),
            )
            for p, why in report.blocked.items()
        }
        self._standing = {**carried(before, report, self._acked), **blocked}
        self._acked = report.acked
        self._claims.claimant.waiting = self._standing

    def besides(self, report: TaskReport) -> TaskReport:
        """The report in the middle of a micro-batch: what waits, the run's copiers say in their claims until it ends."""

        async def waits() -> dict[TopicPartition, Waiting]:
            return self._claims.claimant.log.waits_of_run(self._claims.claimant.holder)

        return replace(report, waiting={**self._net.run(waits), **report.waiting})

    def end(self) -> None:
        """Says that the run is over, and gives its tasks' processes a moment to release what they hold."""
        left, log = self._net.run(self._claims.end), self._claims.claimant.log
        # Frozen while a broker held them up, they lost it with what they had sent: the next mirror counts that, too (identical/unread.py).
        lost = {n for n in log.cut_off_of_run(self._claims.claimant.holder) if log.silent_ms(n) < 1000 * LATE_S}
        self.unsettled = sorted({whole_of(name) for name in left | lost})

    def close(self) -> None:
        """Ends the run, and its thread; idempotent."""
        if self._target.manager.closed:
            return
        self.end()

        async def close_cluster() -> None:
            self._target.close()

        self._net.run(close_cluster)
        self._net.stop(timeout_ms=2000)
        self._net.close()

    def _spawn(self, function: Callable[..., Any], *args: Any) -> None:
        self._net.call_soon(lambda: function(*args))
