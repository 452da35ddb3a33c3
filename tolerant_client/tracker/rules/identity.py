"""Checks whether a response names what its request asked for.

A response under our correlation id may decode and still belong to another request.
Where an API's response names its subjects (topics, partitions, groups,
resources, users...), they are compared with those of the request.

Laws:
- A legitimate response is never refused.  Nothing is compared where either side has
  a null or empty name (a topic known by its id), or where the request asks for
  everything; a response with an error of its own may leave subjects out.
- What was asked for once may be named once only: otherwise one flipped bit, which
  turns a name into its neighbour's, would pass one partition off as another.
- Produce and Fetch are not here: requests.py compares their partitions faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tolerant_client.tracker.rules import apis

Name = tuple[Any, ...]
Names = Counter[Name]
_Read = Callable[[Any], Names | None]  # None: everything

_NEWEST = 0x7FFF


@dataclass(frozen=True, slots=True)
class Subjects:
    """What a request and its response name, in versions `since` to `until` (kafka-python fills old and new fields).

    `is_whole`: a response without an error names all that was asked for; otherwise
    a part is enough, and asking for nothing asks for everything.  `failed` reads the
    prefixes of names that may be missing because of an error in the response.
    `may_repeat`: the response may name one subject several times.
    """

    asked: _Read
    answered: _Read
    is_whole: bool = True
    since: int = 0
    until: int = _NEWEST
    failed: Callable[[Any], set[Name]] = lambda response: set()
    may_repeat: bool = False

    def fit(self, request: Any, response: Any) -> bool:
        """False when the response names what the request did not, names it more often, or leaves out what it did."""
        asked = self.asked(request)
        if asked is None or not (asked or self.is_whole) or _is_anonymous(asked):
            return True
        answered = self.answered(response)
        if answered is None or answered == asked or _is_anonymous(answered):
            return True
        wanted, named = _as_text(asked), _as_text(answered)
        if not named.keys() <= wanted.keys() or not (self.may_repeat or named <= wanted):
            return False
        missing = wanted.keys() - named.keys()
        if not missing or not self.is_whole or bool(getattr(response, "error_code", 0)):
            return True
        failed = self.failed(response)
        return all(any(name[: len(start)] == start for start in failed) for name in missing)


def _named(*paths: str) -> _Read:
    """Reads the names along each path: lists with the fields that name their items, as in "topics.name partitions.*".

    `*` is an item that is itself the name; `-` skips a field that names nothing
    but has its position in a tuple.
    """
    levels = [[level.split(".") for level in path.split()] for path in paths]

    def read(message: Any) -> Names | None:
        names: Names = Counter()
        try:
            is_everything = not all([_collect(getattr(message, path[0][0]), path, (), names) for path in levels])
        except (AttributeError, IndexError, TypeError):
            return None  # kafka-python's encoder may take this shape, but we cannot read it
        return None if is_everything else names

    return read


def _same(*paths: str, is_whole: bool = True, since: int = 0, until: int = _NEWEST) -> Subjects:
    """For an API whose response names its subjects as the request does."""
    return Subjects(_named(*paths), _named(*paths), is_whole, since, until)


def _all_if_none(read: _Read) -> _Read:
    """Reads an empty list as everything (Metadata version 0)."""
    return lambda message: read(message) or None


def _collect(items: Any, path: list[list[str]], prefix: tuple[Any, ...], names: Names) -> bool:
    """Adds the names below `items`; False where a null list stands for everything."""
    if items is None:
        return False
    (_, *fields), *deeper = path
    for item in items:
        if fields == ["*"]:
            own: tuple[Any, ...] = (item,)
        else:
            own = tuple(part(item, field, place) for place, field in enumerate(fields) if field != "-")
        if not deeper:
            names[prefix + own] += 1
        elif not _collect(part(item, deeper[0][0], len(fields)), deeper, prefix + own, names):
            return False
    return True


def _as_text(names: Names) -> Names:
    """Numbers as text: kafka-python takes either as a name (a broker's resource name)."""
    return Counter(tuple(str(part) if isinstance(part, int) else part for part in name) for name in names.elements())


def _is_anonymous(names: Names) -> bool:
    return any(None in name or "" in name for name in names)


def part(thing: Any, field: str, place: int) -> Any:
    """One field of an object or a tuple; kafka-python also takes bare values for structures of one field."""
    if isinstance(thing, (tuple, list)):
        return thing[place]
    return thing if isinstance(thing, (str, int)) else getattr(thing, field)


def _count(field: str) -> _Read:
    """Reads how many there are, for responses that keep the request's order and name nothing."""
    return lambda message: Counter([(len(getattr(message, field)),)])


def _scalar(field: str) -> _Read:
    """Reads one field; an empty or null value names nothing."""

    def read(message: Any) -> Names:
        value = getattr(message, field)
        return Counter([(value,)] if value and not getattr(message, "error_code", 0) else ())

    return read


def _failed_groups(response: Any) -> set[Name]:
    return {(group.group_id,) for group in response.groups if group.error_code}


_TOPICS = _named("topics.name partitions.partition_index")
_RESOURCES = _named("resources.resource_type.resource_name")
_CHANGED_RESOURCES = Subjects(_RESOURCES, _named("responses.resource_type.resource_name"))

SUBJECTS: dict[int, tuple[Subjects, ...]] = {
    apis.LIST_OFFSETS: (Subjects(_TOPICS, _TOPICS),),
    apis.METADATA: (
        Subjects(_all_if_none(_named("topics.name")), _named("topics.name"), until=0),
        _same("topics.name", since=1, until=9),
        Subjects(_named("topics.-.name"), _named("topics.name"), since=10),
    ),
    apis.OFFSET_COMMIT: (Subjects(_TOPICS, _TOPICS),),
    apis.OFFSET_FETCH: (
        Subjects(_named("topics.name partition_indexes.*"), _TOPICS, until=7),
        _same("groups.group_id", since=8),
        Subjects(
            _named("groups.group_id topics.name partition_indexes.*"),
            _named("groups.group_id topics.name partitions.partition_index"),
            since=8,
            failed=_failed_groups,
        ),
    ),
    apis.FIND_COORDINATOR: (Subjects(_named("coordinator_keys.*"), _named("coordinators.key"), since=4),),
    apis.JOIN_GROUP: (Subjects(_scalar("member_id"), _scalar("member_id"), is_whole=False),),
    apis.SYNC_GROUP: (Subjects(_scalar("protocol_name"), _scalar("protocol_name"), is_whole=False),),
    apis.LEAVE_GROUP: (_same("members.member_id", is_whole=False),),
    apis.DESCRIBE_GROUPS: (Subjects(_named("groups.*"), _named("groups.group_id")),),
    apis.CREATE_TOPICS: (_same("topics.name"),),
    apis.DELETE_TOPICS: (
        Subjects(_named("topic_names.*"), _named("responses.name"), until=5),
        Subjects(_named("topics.name"), _named("responses.name"), since=6),
        Subjects(_named("topics.-.topic_id"), _named("responses.topic_id"), since=6),
    ),
    apis.DELETE_RECORDS: (Subjects(_TOPICS, _TOPICS),),
    apis.OFFSET_FOR_LEADER_EPOCH: (_same("topics.topic partitions.partition"),),
    apis.ADD_PARTITIONS_TO_TXN: (
        Subjects(
            _named("v3_and_below_topics.name partitions.*"),
            _named("results_by_topic_v3_and_below.name results_by_partition.partition_index"),
            until=3,
        ),
        Subjects(_named("transactions.transactional_id"), _named("results_by_transaction.transactional_id"), since=4),
        Subjects(
            _named("transactions.transactional_id topics.name partitions.*"),
            _named("results_by_transaction.transactional_id topic_results.name results_by_partition.partition_index"),
            is_whole=False,
            since=4,
        ),
    ),
    apis.WRITE_TXN_MARKERS: (
        Subjects(
            _named("markers.producer_id.-.- topics.name partition_indexes.*"),
            _named("markers.producer_id topics.name partitions.partition_index"),
            is_whole=False,
        ),
    ),
    apis.TXN_OFFSET_COMMIT: (Subjects(_TOPICS, _TOPICS),),
    apis.CREATE_ACLS: (Subjects(_count("creations"), _count("results")),),
    apis.DELETE_ACLS: (Subjects(_count("filters"), _count("filter_results")),),
    apis.DESCRIBE_CONFIGS: (Subjects(_RESOURCES, _named("results.resource_type.resource_name")),),
    apis.ALTER_CONFIGS: (_CHANGED_RESOURCES,),
    apis.INCREMENTAL_ALTER_CONFIGS: (_CHANGED_RESOURCES,),
    apis.ALTER_REPLICA_LOG_DIRS: (
        Subjects(
            _named("dirs.- topics.name partitions.*"),
            _named("results.topic_name partitions.partition_index"),
        ),
    ),
    apis.DESCRIBE_LOG_DIRS: (
        Subjects(
            _named("topics.topic partitions.*"),
            _named("results topics.name partitions.partition_index"),
            is_whole=False,
            may_repeat=True,  # a partition that is being moved is in two log directories
        ),
    ),
    apis.CREATE_PARTITIONS: (Subjects(_named("topics.name"), _named("results.name")),),
    apis.DELETE_GROUPS: (Subjects(_named("groups_names.*"), _named("results.group_id")),),
    apis.ELECT_LEADERS: (
        Subjects(
            _named("topic_partitions.topic partitions.*"),
            _named("replica_election_results.topic partition_result.partition_id"),
            is_whole=False,
        ),
    ),
    apis.ALTER_PARTITION_REASSIGNMENTS: (Subjects(_TOPICS, _named("responses.name partitions.partition_index")),),
    apis.LIST_PARTITION_REASSIGNMENTS: (Subjects(_named("topics.name partition_indexes.*"), _TOPICS, is_whole=False),),
    apis.OFFSET_DELETE: (Subjects(_TOPICS, _TOPICS),),
    apis.ALTER_CLIENT_QUOTAS: (_same("entries entity.entity_type.entity_name"),),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: (Subjects(_named("users.name"), _named("results.user"), is_whole=False),),
    apis.ALTER_USER_SCRAM_CREDENTIALS: (Subjects(_named("deletions.name", "upsertions.name"), _named("results.user")),),
    apis.DESCRIBE_QUORUM: (_same("topics.topic_name partitions.partition_index", is_whole=False),),
    apis.UPDATE_FEATURES: (Subjects(_named("feature_updates.feature"), _named("results.feature"), is_whole=False),),
    apis.DESCRIBE_PRODUCERS: (Subjects(_named("topics.name partition_indexes.*"), _TOPICS),),
    apis.DESCRIBE_TRANSACTIONS: (
        Subjects(_named("transactional_ids.*"), _named("transaction_states.transactional_id")),
    ),
    apis.DESCRIBE_TOPIC_PARTITIONS: (_same("topics.name", is_whole=False),),
}


def speaks_of(api_key: int, version: int, request: Any, response: Any) -> bool:
    """True when the response may belong to this request, as far as their names tell."""
    for subjects in SUBJECTS.get(api_key, ()):
        if subjects.since <= version <= subjects.until and not subjects.fit(request, response):
            return False
    return True


def spoken_of(api_key: int, version: int, response: Any) -> Names:
    """What a response names, as far as a request could ask for it; empty where it names nothing."""
    named: Names = Counter()
    for subjects in SUBJECTS.get(api_key, ()):
        if subjects.since <= version <= subjects.until:
            named.update(subjects.answered(response) or Counter())
    return named


def asked_for(api_key: int, request: Any) -> set[Name]:
    """What a request names, as far as a response could name it; empty where it asks for everything."""
    named: set[Name] = set()
    for subjects in SUBJECTS.get(api_key, ()):
        named |= (subjects.asked(request) or Counter()).keys()
    return named
