"""Repairs a link's control that cannot be read because something else has written under its key; forgets one by mistake.

Laws:
- If the record before it is still there, it is written once more, and nothing is forgotten.  If it is gone (the topic was
  compacted meanwhile), or if a newer version wrote the unreadable one, something is forgotten, which takes the operator's consent.
- A link that was only prepared (failback, take-over), under a mistyped name for example, would stop the links that copy the
  same topics for ever: with the operator's consent what was prepared is forgotten.  It has copied nothing, so no record is lost.
- Nothing is written while a mirror of the link runs, or may run: it obeys the record that it has read.
- Records of other links are not touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.mirrors import at_work, look_at_claims, seen_mirrors
from tolerant_client.mirror.state.control_record import (
    CONTROL_TOPIC,
    decode_control,
    encode_control,
    is_newer,
    newest_of,
    why_unreadable,
)
from tolerant_client.mirror.state.control_topic import (
    control_topic,
    read_control,
    read_records,
    update_control,
    write_record,
)
from tolerant_client.mirror.state.link_control import LinkControl, link_options
from tolerant_client.mirror.state.map_topic import was_never_started
from tolerant_client.records.record_batch import Record

_EVERYTHING = (
    "whether the link was promoted or handed back, what was paused and its rate limit; its source and topics, and their ids;"
    " its producer ids; which logs it began, adopted or copied, and how far. It will start as a new link, which takes logs of"
    " the target as its own only if they are the same as the source's. If it may have been promoted, do not start it:"
    " tolerant-kafka failback copies back"
)
_OF_A_NEWER = (
    "what a newer tolerant-client has written about the link since the record before, maybe a promotion; install that version"
    " instead, if there is one"
)
_PREPARED = (
    "what failback or take-over has prepared for it, and what was paused; no mirror of it has started since, so it has copied"
    " nothing. Other links may copy its topics again"
)


@dataclass(frozen=True)
class RepairReport:
    """What was found under a link's key: `unreadable` says why its record cannot be read, None if it can.

    `is_restored`: the record before it counts again, or the newest if it can be read; else nothing is known of the link.
    `forgotten` says what the repair loses, "" for nothing.  `is_done`: the control can be read now, and was forgotten if it is to be.
    """

    link: str
    unreadable: str | None
    is_restored: bool
    forgotten: str
    is_dry_run: bool
    is_done: bool

    @property
    def exit_code(self) -> int:
        return 0 if self.is_done or (self.is_dry_run and not self.forgotten) else 3

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


def former_of(link: str, records: Iterable[Record]) -> LinkControl | None:
    """The control from the newest readable record of a link; None if there is none.  Pure."""
    found = newest_of(link, [record for record in records if record.value is None or why_unreadable(record) is None])
    return None if found is None else decode_control(found.value or b"")


async def repair(target: Cluster, link: str, *, forgets: bool = False, is_dry_run: bool = False) -> RepairReport:
    """Makes the control of a link readable again; if that loses something, only if it `forgets`.

    If it `forgets`, it also forgets a link that was prepared and never started.  Raises OptionError if the control has no
    record of the link, and if a mirror of it runs or that is unknown; KafkaError.
    """
    records = await read_records(target)
    newest = newest_of(link, records)
    if newest is None:
        raise OptionError(f"{CONTROL_TOPIC} of the target says nothing of link {link}: there is nothing to repair")
    former = former_of(link, records)
    if (why := why_unreadable(newest)) is None:
        if not (forgets and former is not None and await was_never_started(target, link, former)):
            return RepairReport(link, None, True, "", is_dry_run, True)
        if not is_dry_run:
            await _forget(target, link)
        return RepairReport(link, None, True, _PREPARED, is_dry_run, not is_dry_run)
    forgotten = _OF_A_NEWER if is_newer(newest.value or b"") else "" if former is not None else _EVERYTHING
    if is_dry_run or (forgotten and not forgets):
        return RepairReport(link, why, former is not None, forgotten, is_dry_run, False)
    await _require_no_mirror(target, link)
    value = None if former is None else encode_control(former, int(time.time() * 1000), newest.offset + 1)
    await write_record(control_topic(target), link, value)
    await read_control(target, link)  # raises if it is unreadable again: the stranger may have written once more
    return RepairReport(link, why, former is not None, forgotten, False, True)


async def _forget(target: Cluster, link: str) -> None:
    """Forgets what was prepared, unless a mirror starts meanwhile; raises OptionError then."""
    await _require_no_mirror(target, link)

    def forgotten(now: LinkControl) -> LinkControl:
        if not now.is_prepared:
            return now
        # The fence of an earlier generation must not be met again, and what it has moved was moved.
        return LinkControl(
            generation=now.generation,
            others=now.others,
            primary_since=now.primary_since,
            known_moves=now.known_moves,
            target_cluster_id=now.target_cluster_id,
        )

    if (await update_control(target, link, forgotten)).topics is not None:
        raise OptionError(f"A mirror of link {link} has started meanwhile: nothing was forgotten")


async def _require_no_mirror(target: Cluster, link: str) -> None:
    claims, looked = await look_at_claims(target), time.monotonic()
    mirrors = await seen_mirrors(target, link, claims, looked)
    if mirrors is None:
        raise OptionError(
            f"Whether a mirror of link {link} runs is unknown, since its claims could not be read: nothing was written"
        )
    for run in at_work(mirrors):
        raise OptionError(
            f"A mirror of link {link} runs on {run.host} (process {run.pid}): stop it, then run tolerant-kafka repair"
            f" {link_options(link, target)}"
        )
