"""Every right that a mirror's principal needs, for the doctor and for the table in guides/security.md.  Pure.

Laws:
- This is the only table: a test compares the guide's with it line by line, and a mirror with exactly these rights
  was run on brokers with an authorizer (tests/brokers/test_least_rights.py).
- A right is needed only for a duty that the link has.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC
from tolerant_client.mirror.state.topic_filter import OWN_TOPICS
from tolerant_client.ops.doctor.finding import Severity

COPIED: Final = ""  # stands for the topics and groups that the link copies
HEARTBEATS: Final = "heartbeats"
CHECKPOINTS: Final = "A.checkpoints.internal"  # A is the alias of the source
_MM2_OFFSETS: Final = "mm2-offsets.A.internal"
_MM2_GROUP: Final = "A-mm2"

# The names that begin with OWN_TOPICS for which the doctor checks rights, by role.
_OWN: Final = {"source": (CONTROL_TOPIC,), "target": (CONTROL_TOPIC, LEDGER_TOPIC, CLAIMS_TOPIC)}


class Duty(enum.Enum):
    """What a link does."""

    COPY = enum.auto()
    GROUPS = enum.auto()
    CONFIGS = enum.auto()
    ACLS = enum.auto()
    HEARTBEATS = enum.auto()
    HEARTBEATS_BACK = enum.auto()  # of the reverse flow that is not enabled, into the source
    CHECKPOINTS = enum.auto()
    MARKERS = enum.auto()
    MARKERS_IF_ALLOWED = enum.auto()
    TAKE_OVER = enum.auto()  # a separate command: the doctor does not check it


class Right(NamedTuple):
    """Operations on one kind of resource, by their names in kafka-acls.sh.

    `name` is COPIED, a name, or, if it ends in "-", a prefix.  `severity` is that of a mirror with this duty that lacks
    the right.  `before` is the first broker version that does not need it.
    """

    role: str  # "source" or "target"
    resource: str  # "topic", "group", "cluster" or "transactional-id"
    name: str
    operations: tuple[str, ...]
    duty: Duty
    severity: Severity
    purpose: str
    before: tuple[int, int] | None = None

    @property
    def is_prefix(self) -> bool:
        return self.name.endswith("-")

    @property
    def thing(self) -> str:
        """The resource, in the words of the guide."""
        kind = self.resource.replace("-", " ")
        if self.resource == "cluster":
            return kind
        if self.name == COPIED:
            return f"{kind}s that are copied"
        return f"{kind}s that begin with `{self.name}`" if self.is_prefix else f"{kind} `{self.name}`"


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

RIGHTS: Final = (
    Right(
        "source", "topic", COPIED, ("Read", "Describe"), Duty.COPY, _ERROR,
        "reading the records, finding partitions and their ends",
    ),
    Right(
        "source", "topic", COPIED, ("DescribeConfigs",), Duty.COPY, _ERROR,
        "giving the target's topics the same configuration",
    ),
    Right(
        "source", "topic", OWN_TOPICS, ("Read", "Describe"), Duty.COPY, _WARNING,
        "finding links that copy back from the target (loops); `failback`",
    ),
    Right(
        "source", "topic", HEARTBEATS, ("Read", "Describe", "DescribeConfigs"), Duty.HEARTBEATS, _WARNING,
        "copying heartbeats (`heartbeats.replication.enabled`)",
    ),
    Right(
        "source", "topic", HEARTBEATS, ("Create", "Write", "Describe"), Duty.HEARTBEATS_BACK, _WARNING,
        "heartbeats of the reverse flow, which MirrorMaker 2 writes, too (`B->A.emit.heartbeats.enabled`)",
    ),
    Right(
        "source", "group", COPIED, ("Describe",), Duty.GROUPS, _WARNING,
        "reading what groups have committed: syncing groups, checkpoints, `promote`",
    ),
    Right("source", "cluster", COPIED, ("Describe",), Duty.GROUPS, _WARNING, "finding all groups"),
    Right(
        "source", "cluster", COPIED, ("Describe",), Duty.ACLS, _WARNING,
        "reading ACLs (`sync.topic.acls.enabled`)",
    ),
    Right(
        "target", "topic", COPIED, ("Write", "Read", "Describe"), Duty.COPY, _ERROR,
        "writing the records, and comparing the end of the copy with the source",
    ),
    Right(
        "target", "topic", COPIED, ("DescribeConfigs",), Duty.COPY, _ERROR,
        "knowing what the topics accept",
    ),
    Right(
        "target", "topic", COPIED, ("Create",), Duty.COPY, _ERROR,
        "creating topics that are missing (Create on the cluster also suffices)",
    ),
    Right(
        "target", "topic", COPIED, ("Alter",), Duty.COPY, _WARNING,
        "adding the partitions that the source gains",
    ),
    Right(
        "target", "topic", COPIED, ("AlterConfigs",), Duty.CONFIGS, _WARNING,
        "keeping topic configurations the same (`sync.topic.configs.enabled`)",
    ),
    Right(
        "target", "topic", COPIED, ("Delete",), Duty.COPY, _WARNING,
        "starting a log where the source's starts (DeleteRecords); `failback --discard-diverged`",
    ),
    Right(
        "target", "topic", OWN_TOPICS, ("Create", "Write", "Read", "Describe", "DescribeConfigs"), Duty.COPY, _ERROR,
        "claiming what is written and reading the orders in the link's control (without either nothing is copied), its ledger, its map of offsets",
    ),
    Right(
        "target", "transactional-id", OWN_TOPICS, ("Write", "Describe"), Duty.COPY, _ERROR,
        "the link's producer id, filling gaps, translated offsets, `promote`",
    ),
    Right(
        "target", "cluster", COPIED, ("IdempotentWrite",), Duty.COPY, _ERROR,
        "writing to brokers before Kafka 2.8", (2, 8),
    ),
    Right(
        "target", "cluster", COPIED, ("ClusterAction",), Duty.MARKERS, _ERROR,
        "filling gaps with `tolerant.gap.fill = markers`, and only that",
    ),
    Right(
        "target", "cluster", COPIED, ("Describe", "ClusterAction"), Duty.MARKERS_IF_ALLOWED, _INFO,
        "filling gaps with markers by `tolerant.gap.fill = auto`; without both, with transactions",
    ),
    Right(
        "target", "topic", HEARTBEATS, ("Create", "Write", "Describe"), Duty.HEARTBEATS, _WARNING,
        "heartbeats (`emit.heartbeats.enabled`)",
    ),
    Right(
        "target", "topic", CHECKPOINTS, ("Create", "Write", "Read", "Describe"), Duty.CHECKPOINTS, _WARNING,
        "checkpoints (`emit.checkpoints.enabled`)",
    ),
    Right(
        "target", "group", COPIED, ("Read", "Describe"), Duty.GROUPS, _WARNING,
        "committing for groups that are copied: syncing groups, `promote`",
    ),
    Right(
        "target", "cluster", COPIED, ("Describe", "Alter"), Duty.ACLS, _WARNING,
        "copying ACLs (`sync.topic.acls.enabled`)",
    ),
    Right(
        "target", "topic", _MM2_OFFSETS, ("Read", "Write", "Describe"), Duty.TAKE_OVER, _WARNING,
        "`take-over` and `hand-back`, while they run",
    ),
    Right(
        "target", "group", _MM2_GROUP, ("Describe",), Duty.TAKE_OVER, _WARNING,
        "`take-over` and `hand-back`, while they run: checking whether MirrorMaker 2 runs",
    ),
)  # fmt: skip


class Asked(NamedTuple):
    """A right and the names for which it is checked; no names for the cluster."""

    right: Right
    names: tuple[str, ...] = ()


def asked(
    role: str,
    duties: Collection[Duty],
    copied: Collection[str],
    called: Mapping[str, str],
    version: tuple[int, ...] = (),
) -> Iterator[Asked]:
    """The rights that a link with these duties needs on a cluster, except those to groups and transactional ids.

    `copied` are the link's topics there, `called` its names for HEARTBEATS and CHECKPOINTS, `version` the brokers'.
    """
    for right in RIGHTS:
        if right.role != role or right.duty not in duties or (right.before is not None and version >= right.before):
            continue
        if right.resource == "cluster":
            yield Asked(right)
        elif right.resource == "topic":
            named = _OWN[role] if right.name == OWN_TOPICS else (called.get(right.name, right.name),)
            yield Asked(right, tuple(sorted(copied)) if right.name == COPIED else named)


def created_names(rights: Iterable[Asked]) -> set[str]:
    """The link's own topics that it creates if they are missing."""
    return {name for right, names in rights if right.name != COPIED and "Create" in right.operations for name in names}


def rights_to(role: str, resource: str, duties: Collection[Duty]) -> Iterator[Right]:
    """The rights to one kind of resource."""
    return (right for right in RIGHTS if (right.role, right.resource) == (role, resource) and right.duty in duties)
