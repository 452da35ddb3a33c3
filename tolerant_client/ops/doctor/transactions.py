"""Open transactions that hold back the last stable offset, and which of them will never end (KIP-664).  Pure.

A mirror, like any read_committed consumer, copies up to the last stable offset: an open transaction holds back
everything after its first record.  It *hangs* if its coordinator does not know that it includes this partition.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from tolerant_client.cluster.admin.transactions import CoordinatorView
from tolerant_client.mirror.state.open_transactions import OpenTransaction
from tolerant_client.ops.doctor.facts import ClusterFacts
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, some

_SETTLED_MS = 60_000  # until then a marker may be on its way
_DEFAULT_MAX_TIMEOUT_MS = 900_000  # transaction.max.timeout.ms


def still_open(seen: Iterable[OpenTransaction], later: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """The transactions of the second observation that were open in the first, too."""
    before = {(one.partition, one.producer_id, one.start_offset) for one in seen}
    return [one for one in later if (one.partition, one.producer_id, one.start_offset) in before]


@check("transactions")
def transaction_findings(
    facts: ClusterFacts,
    transactions: Iterable[OpenTransaction],
    views: Mapping[int, CoordinatorView] | None,
    now_ms: int,
) -> Iterator[Told]:
    """Judges transactions that were open both before and after the coordinators were asked.

    `views` by producer id; None if we may not, or cannot, ask every coordinator.
    """
    longest = int(facts.broker_setting("transaction.max.timeout.ms") or _DEFAULT_MAX_TIMEOUT_MS)
    waiting: dict[int, list[OpenTransaction]] = {}
    for one in transactions:
        view = None if views is None else views.get(one.producer_id)
        age_ms = now_ms - one.last_timestamp
        # A coordinator does not list a transactional id that we may not describe: so an unknown one must be old, too.
        is_forgotten = view is not None and one.partition not in view.partitions and age_ms > _SETTLED_MS
        if is_forgotten or (view is None and age_ms > longest):
            yield _hanging(facts, one, view, age_ms, is_asked=views is not None)
        elif age_ms > _SETTLED_MS:
            waiting.setdefault(one.producer_id, []).append(one)
    for producer_id, found in waiting.items():
        yield _open(producer_id, found, None if views is None else views.get(producer_id), now_ms)


def _hanging(
    facts: ClusterFacts, one: OpenTransaction, view: CoordinatorView | None, age_ms: int, *, is_asked: bool
) -> Told:
    topic, index = one.partition
    quoted = shlex.quote(topic)  # only a hostile broker could return a name that needs it
    if not is_asked:
        why = "older than transaction.max.timeout.ms allows (not every coordinator could be asked)"
    elif view is None:
        why = "older than transaction.max.timeout.ms allows, and no coordinator reports its producer id"
    else:
        why = f"transactional id {view.transactional_id} is {view.state} and does not have this partition any more"
    # Ages are the records' timestamps: without the coordinator's state, a live transaction of old records looks the same.
    is_told = view is not None
    remedy = (
        f"{facts.tool('kafka-transactions.sh')} abort --topic {quoted} --partition {index} --start-offset {one.start_offset}"
        if is_told
        else f"{facts.tool('kafka-transactions.sh')} find-hanging --topic {quoted} --partition {index}"
        "  # by a principal that may describe transactional ids, before you abort it: it may be alive"
    )
    return Told(
        Severity.ERROR if is_told else Severity.WARNING,
        f"hanging transaction in {topic}-{index}" if is_told else f"perhaps a hanging transaction in {topic}-{index}",
        f"producer id {one.producer_id} (epoch {one.producer_epoch}) has had it open since offset {one.start_offset}, its last"
        f" record is {duration(age_ms)} old, {why}; {one.held_back} offsets wait after it, and a mirror with them",
        remedy,
    )


def _open(producer_id: int, found: list[OpenTransaction], view: CoordinatorView | None, now_ms: int) -> Told:
    where = some([f"{one.partition.topic}-{one.partition.partition}" for one in found])
    held = sum(one.held_back for one in found)
    if view is None:
        age, is_late = f"its last record is {duration(now_ms - max(one.last_timestamp for one in found))} old", False
        who = f"producer id {producer_id}"
    else:
        open_ms = now_ms - view.started_ms
        is_late = open_ms > view.timeout_ms + _SETTLED_MS
        age = f"open for {duration(open_ms)}, with a timeout of {duration(view.timeout_ms)}, {view.state}"
        who = f"transactional id {view.transactional_id} (producer id {producer_id})"
    return Told(
        Severity.WARNING if is_late else Severity.INFO,
        who,
        f"{age}: {held} offsets of {where} wait after it",
        "Check the coordinator: it should have aborted it (does its __transaction_state partition have a leader?)"
        if is_late
        else "None needed: its coordinator aborts it in time; a shorter transaction.timeout.ms of the producer limits the wait",
    )
