"""Open transactions that hold back the last stable offset, and which of them nobody will ever end (KIP-664).  Pure.

A mirror copies up to the last stable offset, and so does whoever reads committed: an open transaction holds up
everything behind its first record.  It *hangs* when its coordinator does not know that it has this partition.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from tolerant_client.cluster.admin.transactions import CoordinatorView
from tolerant_client.mirror.state.open_transactions import OpenTransaction
from tolerant_client.ops.doctor.facts import ClusterFacts
from tolerant_client.ops.doctor.finding import Severity, Told, check, duration, some

_SETTLED_MS = 60_000  # a marker may be under way
_DEFAULT_MAX_TIMEOUT_MS = 900_000  # transaction.max.timeout.ms


def still_open(seen: Iterable[OpenTransaction], later: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Those of a later look that were open before."""
    before = {(one.partition, one.producer_id, one.start_offset) for one in seen}
    return [one for one in later if (one.partition, one.producer_id, one.start_offset) in before]


@check("transactions")
def transaction_findings(
    facts: ClusterFacts,
    transactions: Iterable[OpenTransaction],
    views: Mapping[int, CoordinatorView] | None,
    now_ms: int,
) -> Iterator[Told]:
    """What `transactions` mean that were open before the coordinators were asked, and after.

    `views` by producer id; None where we may not, or cannot, ask every coordinator.
    """
    longest = int(facts.broker_setting("transaction.max.timeout.ms") or _DEFAULT_MAX_TIMEOUT_MS)
    waiting: dict[int, list[OpenTransaction]] = {}
    for one in transactions:
        view = None if views is None else views.get(one.producer_id)
        age_ms = now_ms - one.last_timestamp
        # A transactional id that we may not describe is not listed: what nobody seems to know must be old, too.
        is_forgotten = view is not None and one.partition not in view.partitions and age_ms > _SETTLED_MS
        if is_forgotten or (view is None and age_ms > longest):
            yield _hanging(facts, one, view, age_ms, is_asked=views is not None)
        elif age_ms > _SETTLED_MS:
            waiting.setdefault(one.producer_id, []).append(one)
    for producer_id, found in waiting.items():
        yield _open(facts, producer_id, found, None if views is None else views.get(producer_id), now_ms)


def _hanging(
    facts: ClusterFacts, one: OpenTransaction, view: CoordinatorView | None, age_ms: int, *, is_asked: bool
) -> Told:
    topic, index = one.partition
    quoted = shlex.quote(topic)  # only a hostile broker can name a topic so that this matters
    if not is_asked:
        why = "older than transaction.max.timeout.ms allows (not every coordinator could be asked)"
    elif view is None:
        why = "older than transaction.max.timeout.ms allows, and no coordinator tells us of its producer id"
    else:
        why = f"transactional id {view.transactional_id} is {view.state} and does not have this partition any more"
    # Ages are those of the records: without a coordinator's word a live transaction over old records looks the same.
    is_told = view is not None
    remedy = (
        f"{facts.tool('kafka-transactions.sh')} abort --topic {quoted} --partition {index} --start-offset {one.start_offset}"
        if is_told
        else f"{facts.tool('kafka-transactions.sh')} find-hanging --topic {quoted} --partition {index}"
        "  # by a principal that may describe transactional ids, before it is aborted: it may be alive"
    )
    return Told(
        Severity.ERROR if is_told else Severity.WARNING,
        f"hanging transaction in {topic}-{index}" if is_told else f"perhaps a hanging transaction in {topic}-{index}",
        f"producer id {one.producer_id} (epoch {one.producer_epoch}) has had it open since offset {one.start_offset}, its last"
        f" record is {duration(age_ms)} old, {why}; {one.held_back} offsets wait behind it, and a mirror with them",
        remedy,
    )


def _open(
    facts: ClusterFacts, producer_id: int, found: list[OpenTransaction], view: CoordinatorView | None, now_ms: int
) -> Told:
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
        f"{age}: {held} offsets of {where} wait behind it",
        "Look at the coordinator: it should have aborted it (is its __transaction_state partition led?)"
        if is_late
        else "None needed: its coordinator aborts it in time; a shorter transaction.timeout.ms of the producer holds up less",
    )
