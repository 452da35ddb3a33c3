"""What a watch keeps of a link's state topics between samples: the control, the ledger, and which losses are new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.monitoring.link_clusters import AWAY, LinkClusters, quietly
from tolerant_client.ops.service.link_events import sentence
from tolerant_client.ops.service.link_state import LinkState

_CONTROL_INTERVAL_S = 2.0
_LEDGER_INTERVAL_S = 10.0


class StateTopics(NamedTuple):
    """What the state topics say, in LinkState's fields."""

    ledger: tuple[LedgerRow, ...] | None
    control: LinkControl
    control_problem: str


class StateTopicsWatch:
    """Reads each state topic as often as it is due; `losses` are the link's ledger rows since the start, or after which it resumed."""

    def __init__(self) -> None:
        self.losses: list[LedgerRow] = []
        self._former: list[LedgerRow] | None = None
        self._control_at = self._ledger_at = float("-inf")

    def read_former(self, clusters: LinkClusters) -> None:
        """Reads which losses the ledger has from former runs, unless that is known."""
        if self._former is None:
            self._former = quietly(clusters.ledger)

    def read(self, clusters: LinkClusters, state: LinkState, now: float) -> StateTopics:
        """What is due, as of now (monotonic seconds); what is not, or could not be read, stays as it was."""
        ledger, control, problem = StateTopics(state.ledger, state.control, state.control_problem)
        if now - self._ledger_at >= _LEDGER_INTERVAL_S:
            self._ledger_at = now
            rows = quietly(clusters.ledger)
            ledger = ledger if rows is None else tuple(rows)
            self.tell_losses(ledger or (), state)
        if now - self._control_at >= _CONTROL_INTERVAL_S:
            self._control_at = now
            try:
                control, problem = clusters.control(), ""
            except AWAY as error:
                problem = sentence(error)
        return StateTopics(ledger, control, problem)

    def tell_losses(self, rows: Iterable[LedgerRow], state: LinkState) -> None:
        """Takes the ledger's rows: new since the start is what is younger, or what the first sample did not have.

        Both count, because the first sample may be late and clocks may differ.  A loss that the tasks report counts even
        if its row is older: a mirror that was killed after it wrote the row did not resume after it.
        """
        former, found = self._former, list(rows)
        new = [row for row in found if row.time_ms >= state.started_ms or former is not None and row not in former]
        told = {(row.topic, row.partition) for row in new}
        for partition, count in state.report.losses.items():
            if partition not in told:
                new += [row for row in found if (row.topic, row.partition) == partition][-count:]
        self.losses = new
