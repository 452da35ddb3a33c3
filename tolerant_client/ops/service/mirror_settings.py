"""A mirror of one link as it was asked for, and what holds for it with Spark and without."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.prepare import PreparedLink, prepare_link
from tolerant_client.mirror.engine.translated.prepare import prepare_translated_link
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.service.link_state import TaskReport
from tolerant_client.ops.service.ranges import ReportFile
from tolerant_client.ops.service.run_claim import RunClaim
from tolerant_client.security.kafka_config import kafka_python_config

NO_PRODUCER_ID = -1
_NEVER_MS = 10 * 365 * 86_400_000
# What commits and plans on the driver, which are processes of their own, tell the mirror's.
_REPORT, _WAITING = "tolerant-mirror-report.json", "tolerant-mirror-waiting.json"


@dataclass(frozen=True)
class MirrorSettings:
    """A link: Java client properties of both clusters (without prefix), and how to copy.

    `once` ends the mirror at the log ends seen at its start.  In tail mode each
    micro-batch copies for `hold_ms`, and for `lease_ms` more while Spark plans
    the next one.  `offsets` is identical or translated.  `topics` may be a regular expression.
    With `goes_on` a partition that cannot go on, or a topic that is refused, is reported, and the query lives.  New topics
    and partitions are looked for every `refresh_s` seconds; None: never.  `bytes_per_s` is the rate of the link unless its
    operator says another one; None: no limit.  `from_ms` and, with `once`, `until_ms` bound what is copied by the times of
    its records (prepare_link).  `run` is the same for all processes of one mirror.
    """

    source: Mapping[str, str] = field(repr=False)
    target: Mapping[str, str] = field(repr=False)
    topics: LinkTopics | str
    link: str = "default"
    once: bool = False
    tasks: int = 1
    hold_ms: int = 10_000
    lease_ms: int = 30_000
    policy: MirrorPolicy = MirrorPolicy()
    offsets: str = "identical"
    goes_on: bool = False
    refresh_s: float | None = 30.0
    bytes_per_s: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def link_topics(self) -> LinkTopics:
        return LinkTopics.of(self.topics)

    @property
    def names(self) -> TopicNames | None:
        """What the link's topics are called on the target; None: as on the source."""
        return self.link_topics.names


def run_claim(settings: MirrorSettings) -> RunClaim:
    """The claim of a mirror that starts now; to be closed."""
    return RunClaim(settings.target, settings.link, settings.run, is_translated=settings.offsets == "translated")


def prepare(settings: MirrorSettings, claim: RunClaim) -> PreparedLink:
    """Checks the link, claims its topics and creates missing ones.

    Raises the errors of prepare_link and prepare_translated_link, and TargetClaimedError.
    """
    how: dict[str, Any] = {
        "from_ms": settings.from_ms,
        "until_ms": settings.until_ms,
        "goes_on": settings.goes_on,
        "claim": claim.take,
    }
    with Cluster(kafka_python_config(settings.source), name="source", names=settings.names) as source:
        target = Cluster(kafka_python_config(settings.target), source.net, name="target")
        try:
            if settings.offsets == "identical":
                return source.run(
                    partial(prepare_link, **how), source, target, settings.topics, settings.link, settings.policy
                )
            copies = source.run(partial(prepare_translated_link, **how), source, target, settings.topics, settings.link)
            return PreparedLink(NO_PRODUCER_ID, copies.created, copies.ends, copies.warnings, copies.waiting)
        finally:
            target.close()


def plan_options(settings: MirrorSettings, folder: Path) -> dict[str, str]:
    """The options of the side that plans (stream_ranges.py)."""
    until = {} if settings.until_ms is None else {"untilMs": str(settings.until_ms)}
    return {
        "link": settings.link,
        "offsets": settings.offsets,
        "linkTopics": settings.link_topics.to_json(),
        "tasks": str(max(1, settings.tasks)),
        "tail": str(not settings.once).lower(),
        "refreshIntervalMs": str(_NEVER_MS if settings.refresh_s is None else round(settings.refresh_s * 1000)),
        "waiting": str(folder / _WAITING),
        **until,
        **_clusters(settings, "kafka.", "target.kafka."),
    }


def copy_options(settings: MirrorSettings, link: PreparedLink, folder: Path) -> dict[str, str]:
    """The options of the side that copies (stream_ranges.py)."""
    return {
        "link": settings.link,
        "offsets": settings.offsets,
        "linkTopics": settings.link_topics.to_json(),
        "producerId": str(link.producer_id),
        "policy": settings.policy.to_json(),
        "tasks": str(max(1, settings.tasks)),
        "run": settings.run,
        "bytesPerSecond": str(settings.bytes_per_s or 0),
        "holdMs": str(0 if settings.once else settings.hold_ms),
        "leaseMs": str(0 if settings.once else settings.lease_ms),
        "goesOn": str(settings.goes_on).lower(),
        "report": str(folder / _REPORT),
        **_clusters(settings, "source.kafka.", "kafka."),
    }


def _clusters(settings: MirrorSettings, source: str, target: str) -> dict[str, str]:
    return {
        **{f"{source}{key}": value for key, value in settings.source.items()},
        **{f"{target}{key}": value for key, value in settings.target.items()},
    }


class RunReport:
    """What a mirror with this folder has told up to its last micro-batch, and what its planner leaves out."""

    def __init__(self, folder: Path) -> None:
        self._done = ReportFile(folder / _REPORT)
        self._waiting = ReportFile(folder / _WAITING)

    def read(self) -> TaskReport:
        done, left_out = self._done.read(), self._waiting.read()
        blocked, waiting = {**left_out.blocked, **done.blocked}, {**left_out.waiting, **done.waiting}
        if not (left_out.blocked or left_out.waiting or left_out.made_again):
            return done
        return replace(done, blocked=blocked, waiting=waiting, made_again=left_out.made_again)
