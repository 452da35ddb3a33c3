"""What the counters of events count, and what they refuse to."""

from __future__ import annotations

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.tracker.events import KINDS, Orphan, RecoveryCounters


def test_every_kind_is_counted_and_a_misspelt_one_is_refused() -> None:
    counters = RecoveryCounters()
    assert {"completed", "failed", "storm over", "coordinator unavailable", "moved", "orphan:late"} <= set(KINDS)
    assert [counters.of(kind) for kind in KINDS] == [0] * len(KINDS)
    counters.add(Orphan("Fetch", 1, "late"), 2)
    assert (counters.of("orphan"), counters.of("orphan:late"), counters.of("orphan:misfit")) == (1, 1, 0)
    for kind in ("requeud", "orphan:latr", "lost:late", "event"):
        with pytest.raises(OptionError, match=f"No event has the kind '{kind}': give one of completed, "):
            counters.of(kind)
