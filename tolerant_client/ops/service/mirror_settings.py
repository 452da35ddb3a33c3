"""The settings of a mirror of one link, as given by its user, with Spark and without."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.appendable import NO_PRODUCER
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.engine.prepare import PreparedLink, prepare_link
from tolerant_client.mirror.state.replication_policy import TopicNames
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.service.clusters import both
from tolerant_client.ops.service.run_claim import RunClaim
from tolerant_client.state_json import Whole, decoded

_OPTION: Final = "linkSecrets"  # holds the clusters' passwords: Spark redacts options whose names contain "secret"


@dataclass(frozen=True)
class MirrorSettings:
    """A link: Java client properties of both clusters (without prefix), and how to copy.

    `once` ends the mirror at the last stable offsets seen at its start.  In tail mode each
    micro-batch copies for `hold_ms`, and for `lease_ms` more while Spark plans
    the next one.  `offsets` is identical or translated.  `topics` may be a regular expression.
    With `goes_on` a partition that cannot be copied, or a topic that is refused, is reported, and the query continues.
    New topics and partitions are discovered every `refresh_s` seconds; None: never.  `bytes_per_s` limits the link unless
    its operator sets another rate; None: no limit.  `from_ms` and, with `once`, `until_ms` limit what is copied by record
    timestamps (prepare_link).  `run` is the same for all processes of one mirror.  `file_options` name the link in commands
    if a file describes it.
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
    file_options: str = ""

    @property
    def is_identical(self) -> bool:
        return self.offsets == "identical"

    @property
    def link_topics(self) -> LinkTopics:
        return LinkTopics.of(self.topics)

    @property
    def names(self) -> TopicNames | None:
        """The topic names on the target; None: as on the source."""
        return self.link_topics.names


@dataclass(frozen=True)
class MirrorJob:
    """A prepared link as one document for the planner and the copiers, which may be other processes.

    They write their reports to `folder` on the driver (task_reports.py), if there is one.  `generation` is the link's when it was
    prepared (LinkControl): such a process may be started when a later one has begun.
    """

    settings: MirrorSettings
    producer_id: int = NO_PRODUCER
    folder: str | None = None
    generation: Whole | None = None

    @property
    def options(self) -> dict[str, str]:
        """The job as options of Spark's data source."""
        return {"payload": "ranges", _OPTION: msgspec.json.encode(self).decode()}

    @staticmethod
    def of(options: Mapping[str, str]) -> MirrorJob:
        """The job in such options; raises OptionError."""
        try:
            return decoded(options.get(_OPTION), MirrorJob)
        except ValueError as error:
            raise OptionError(
                f"payload=ranges is for mirrors: start one with tolerant-kafka mirror ({error})"
            ) from error


def run_claim(settings: MirrorSettings) -> RunClaim:
    """The claim of a mirror that starts now; the caller closes it."""
    return RunClaim(settings.target, settings.link, settings.run, is_translated=not settings.is_identical)


def prepare(settings: MirrorSettings, claim: RunClaim, is_stopping: Callable[[], bool]) -> PreparedLink:
    """Checks the link, claims its topics and creates those that are missing.

    Raises the errors of prepare_link, TargetClaimedError, and StoppedError once `is_stopping`, whatever it waits for.
    """
    how: dict[str, Any] = {
        "is_translated": not settings.is_identical,
        "from_ms": settings.from_ms,
        "until_ms": settings.until_ms,
        "goes_on": settings.goes_on,
        "claim": partial(claim.take, is_stopping=is_stopping),
    }
    with both(settings.source, settings.target, settings.names, file_options=settings.file_options) as (source, target):
        how_to = partial(prepare_link, **how)
        asked = (source, target, settings.topics, settings.link, settings.policy)
        return source.run(how_to, *asked, is_stopping=is_stopping)
