"""What is decided about groups of a link, and how many groups are asked at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as Errors
import pytest
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from spark_integration.writing.exactly_once import SinkBatch
from tolerant_client.cluster.producer.transaction import CommittedOffset
from tolerant_client.errors import LinkPromotedError, UnsupportedSourceError
from tolerant_client.mirror.follow import group_requests, groups
from tolerant_client.mirror.follow.group_requests import (
    GroupsHome,
    ListedGroup,
    OffsetsPartition,
    commit_offsets,
    described_states,
    fetch_offsets,
    group_states,
)
from tolerant_client.mirror.follow.groups import (
    GroupMove,
    GroupPosition,
    GroupPositions,
    SharedPositions,
    TargetLog,
    decide_moves,
    position_of,
    read_positions,
)
from tolerant_client.mirror.life import promotion
from tolerant_client.mirror.state.offset_map import MapRow, OffsetMap, RowKey, Run
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.stock.coordinator_partition import partition_of

PLACE = TopicPartition("A.orders", 3)


@pytest.mark.parametrize(
    ("committed", "log", "offset", "is_behind"),
    [
        (50, TargetLog(0, 100), 50, False),
        (100, TargetLog(0, 100), 100, False),
        (130, TargetLog(0, 100), 100, True),  # not copied yet
        (5, TargetLog(40, 100), 40, False),  # deleted by the target's retention
        (0, TargetLog(0, 0), 0, False),
        (7, TargetLog(0, 0), 0, True),
        (900, TargetLog(0, 100, {900: (45, False)}), 45, False),  # translated
        (999, TargetLog(0, 100, {999: (100, True)}), 100, True),
        (1, TargetLog(40, 100, {1: (12, False)}), 40, False),
        (900, TargetLog(0, 30, {900: (45, False)}), 30, False),
    ],
)
def test_an_offset_is_kept_within_what_the_target_has(
    committed: int, log: TargetLog, offset: int, is_behind: bool
) -> None:
    position = position_of("g", PLACE, CommittedOffset(committed, "m"), log)
    assert position == GroupPosition(
        "g", PLACE, committed, offset, "m", is_behind, is_deleted=offset == log.start == 40
    )


@pytest.mark.parametrize(
    ("wanted", "before", "state", "may_rewind", "moved", "reason"),
    [
        (50, None, "Dead", False, True, None),
        (50, None, "Empty", False, True, None),
        (50, 20, "Empty", False, True, None),
        (50, 50, "Empty", False, False, None),
        (50, 80, "Empty", False, False, "ahead"),
        (50, 80, "Empty", True, True, None),
        (50, 20, "Stable", False, False, "members"),
        (50, None, "Stable", False, False, "members"),
        (50, 80, "Stable", True, False, "members"),
        (50, 20, "PreparingRebalance", False, False, "members"),
        (50, 20, "Assigning", True, False, "members"),
        (50, 20, "Reconciling", False, False, "members"),
        (50, 20, "Unknown", False, False, "members"),
        (50, 50, "Stable", False, False, None),
    ],
)
def test_a_group_is_moved_forward_while_nobody_consumes(
    wanted: int, before: int | None, state: str, may_rewind: bool, moved: bool, reason: str | None
) -> None:
    position = GroupPosition("g", PLACE, wanted, wanted, "", False)
    there = {} if before is None else {PLACE: CommittedOffset(before, "")}
    moves, left, unchanged = decide_moves([position], {"g": there}, {"g": state}, may_rewind=may_rewind)
    assert moves == ([GroupMove(position, -1 if before is None else before)] if moved else [])
    assert [x.reason for x in left] == ([reason] if reason else [])
    assert unchanged == (before == wanted)


def test_a_group_at_what_another_mirror_has_copied_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. MirrorMaker 2 copies source offsets up to 200, 2. the link takes over, 3. groups stand before and behind that."""

    async def list_groups(cluster: Any) -> Any:
        return {name: ListedGroup(name, "consumer", "Empty", "classic") for name in ("old", "new")}, {}

    async def groups_home(cluster: Any) -> GroupsHome:
        return GroupsHome(())

    async def fetch_offsets(cluster: Any, names: Any) -> Any:
        at = {"old": 150, "new": 203}
        return {name: {PLACE: CommittedOffset(at[name], "")} for name in names}, {}

    async def target_logs(target: Any, wanted: Any, link: str) -> Any:
        row = MapRow(RowKey(PLACE, 0), "A.orders", ("", ""), 210, 0, (Run(200, 61, 10),))
        known = groups._translated(OffsetMap([row], 200), [150, 203])
        return {PLACE: TargetLog(0, 80, known)}, {}

    for function in (list_groups, groups_home, fetch_offsets):
        monkeypatch.setattr(groups, function.__name__, function)
    monkeypatch.setattr(groups, "_target_logs", target_logs)
    topics = LinkTopics.of("A.orders")
    found = drive(read_positions(Named(), Named(), topics, TopicFilter(), link="A-B"))  # type: ignore[arg-type]
    assert [(p.group, p.offset) for p in found.positions] == [("new", 64)]
    (left,) = found.left
    assert (left.name, left.reason) == ("group old, A.orders-3", "before-takeover") and "150" in left.why


def test_groups_whose_offsets_are_no_positions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink's decision has the number of its micro-batch as its offset: cut to the log's end it is another one."""
    decisions = SinkBatch("orders", "query", "run", 700)
    names = [decisions.group(0), decisions.ended_group, decisions.former_prefix + "0", "tolerant-mirror-x", "billing"]
    asked: list[str] = []

    async def list_groups(cluster: Any) -> Any:
        return {name: ListedGroup(name, "", "Empty", "classic") for name in names}, {}

    async def groups_home(cluster: Any) -> GroupsHome:
        return GroupsHome(())

    async def fetch_offsets(cluster: Any, chosen: Any) -> Any:
        asked.extend(chosen)
        return {name: {PLACE: CommittedOffset(701, "")} for name in chosen}, {}

    async def target_logs(target: Any, wanted: Any, link: str) -> Any:
        return {PLACE: TargetLog(0, 80)}, {}

    for module in (groups, promotion):
        monkeypatch.setattr(module, "list_groups", list_groups)
        monkeypatch.setattr(module, "fetch_offsets", fetch_offsets)
    monkeypatch.setattr(groups, "groups_home", groups_home)
    monkeypatch.setattr(groups, "_target_logs", target_logs)
    cluster: Any = Named()
    found = drive(read_positions(cluster, cluster, LinkTopics.of("A.orders"), TopicFilter()))
    assert ([(p.group, p.offset) for p in found.positions], found.left, asked) == ([("billing", 80)], (), ["billing"])
    link: Any = SimpleNamespace(target=Named(), is_translated=False)
    places, unknown = drive(promotion._group_places(link, TopicFilter(), {PLACE: 80}))
    assert ([place.group for place in places], unknown) == (["billing"], ())


class Named:
    name = "source"


def drive(coroutine: Any) -> Any:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_two_duties_share_a_reading_and_none_gets_its_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[Any] = []

    async def read_positions(*_: Any, leave_out: Any, **__: Any) -> Any:
        readings.append(leave_out)
        return GroupPositions((), (), clock[0])

    clock = [100.0]
    monkeypatch.setattr(groups, "read_positions", read_positions)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shared = SharedPositions(LinkTopics.of("t"), TopicFilter())

    def read(duty: str, leave_out: Any = ()) -> Any:
        return drive(shared.read(duty, None, None, leave_out))  # type: ignore[arg-type]

    assert read("groups") is read("checkpoints") and len(readings) == 1
    first = read("groups")
    assert read("groups") is not first and len(readings) == 3
    clock[0] += 60
    assert read("checkpoints") is not None and len(readings) == 4, "it was too old"
    assert read("groups", [PLACE]) is not None and len(readings) == 5, "another partition was stopped since"


def test_a_group_of_which_the_target_says_nothing_is_not_moved() -> None:
    position = GroupPosition("g", PLACE, 5, 5, "", False)
    assert decide_moves([position], {}, {"g": "Empty"}) == ([], [], 0)
    assert decide_moves([position], {"g": {}}, {}) == ([], [], 0)


@pytest.mark.parametrize(
    ("protocol_type", "group_type", "is_of_consumers"),
    [
        ("consumer", "classic", True),
        ("", "classic", True),  # offsets committed without members
        ("consumer", "consumer", True),
        ("connect", "classic", False),
        ("share", "share", False),
        ("streams", "streams", False),
    ],
)
def test_groups_of_consumers_are_told_from_others(protocol_type: str, group_type: str, is_of_consumers: bool) -> None:
    assert ListedGroup("g", protocol_type, "Empty", group_type).is_of_consumers is is_of_consumers


def test_a_group_belongs_to_a_dead_partition_by_its_name() -> None:
    home = GroupsHome(tuple(OffsetsPartition(n, -1 if n == 2 else 1, (n,), ()) for n in range(4)))
    hit = {name: home.dead_home_of(name) for name in (f"group-{n}" for n in range(40))}
    assert (
        {name for name, found in hit.items() if found} == {name for name in hit if partition_of(name, 4) == 2} != set()
    )
    assert GroupsHome(()).dead_home_of("group-1") is None


class Brokers:
    """Two coordinators in one object: groups are at node len(name) % 2, and answer with `codes` until these run out."""

    name = "target"

    def __init__(self, versions: dict[Any, int], codes: dict[str, list[int]] | None = None) -> None:
        self.net = NetworkSelector()
        self.requests: list[tuple[int | None, Any]] = []
        self.codes = codes or {}
        self.highest = {request.API_KEY: highest for request, highest in versions.items()}
        nodes = [SimpleNamespace(node_id=n) for n in (0, 1)]
        self.manager = SimpleNamespace(
            broker_version_data=SimpleNamespace(
                api_versions={key: (0, highest) for key, highest in self.highest.items()}
            ),
            cluster=SimpleNamespace(request_update=lambda: None, brokers=lambda: nodes),
        )

    async def connect(self) -> None:
        pass

    async def refresh(self) -> None:
        pass

    async def insist(self, what: str, attempt: Any, patience_ms: int) -> Any:
        return await attempt()

    def _code(self, group: str) -> int:
        left = self.codes.get(group, [])
        return left.pop(0) if len(left) > 1 else left[0] if left else 0

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        self.requests.append((node_id, request))
        many = self.highest[request.API_KEY]
        if isinstance(request, FindCoordinatorRequest):
            names = request.coordinator_keys if many >= 4 else [request.key]
            names = [name for name in names if name != "unheard of"]
            found = [SimpleNamespace(key=n, node_id=len(n) % 2, error_code=15 if n == "homeless" else 0) for n in names]
            return SimpleNamespace(coordinators=found) if many >= 4 else found[0]
        if isinstance(request, ListGroupsRequest):
            name = "g" * (2 + (node_id or 0))
            listed = SimpleNamespace(group_id=name, protocol_type="consumer", group_state="Stable", group_type="")
            return SimpleNamespace(error_code=self._code(f"broker {node_id}"), groups=[listed])
        if isinstance(request, OffsetFetchRequest):
            names = [g.group_id for g in request.groups] if many >= 8 else [request.group_id]
            part = SimpleNamespace(partition_index=3, committed_offset=len(names[0]), metadata=None, error_code=0)
            gone = SimpleNamespace(partition_index=4, committed_offset=-1, metadata=None, error_code=0)
            topic = SimpleNamespace(name="A.orders", partitions=[part, gone])
            groups = [SimpleNamespace(group_id=n, error_code=self._code(n), topics=[topic]) for n in names]
            return SimpleNamespace(groups=groups) if many >= 8 else groups[0]
        if isinstance(request, OffsetCommitRequest):
            parts = [SimpleNamespace(partition_index=3, error_code=self._code(request.group_id))]
            return SimpleNamespace(topics=[SimpleNamespace(name="A.orders", partitions=parts)])
        assert isinstance(request, DescribeGroupsRequest)
        told = [SimpleNamespace(group_id=n, error_code=self._code(n), group_state="Empty") for n in request.groups]
        return SimpleNamespace(groups=told)

    def count(self, kind: Any) -> int:
        return sum(isinstance(request, kind) for _, request in self.requests)


KINDS = (FindCoordinatorRequest, OffsetFetchRequest, OffsetCommitRequest, ListGroupsRequest, DescribeGroupsRequest)
NEW = dict(zip(KINDS, (6, 10, 10, 5, 6)))  # Kafka 4
OLD = dict(zip(KINDS, (1, 3, 3, 2, 2)))  # Kafka 1
NAMES = [f"g{'.' * (n % 2)}{n:03}" for n in range(300)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_requests, "_READ_PATIENCE_MS", 150)
    monkeypatch.setattr(group_requests, "_COMMIT_PATIENCE_MS", 150)


@pytest.fixture
def made() -> Iterator[list[Brokers]]:
    clusters: list[Brokers] = []
    yield clusters
    for cluster in clusters:
        cluster.net.close()


def run(made: list[Brokers], cluster: Brokers, function: Any, *args: Any) -> Any:
    made.append(cluster)
    return cluster.net.run(function, cluster, *args)


@pytest.mark.parametrize(("versions", "finds", "fetches"), [(NEW, 2, 2), (OLD, 300, 300)])
def test_many_groups_share_requests_where_the_brokers_can(
    made: list[Brokers], versions: dict[Any, int], finds: int, fetches: int
) -> None:
    cluster = Brokers(versions)
    found, failures = run(made, cluster, fetch_offsets, NAMES)
    assert not failures and found == {name: {PLACE: CommittedOffset(len(name), "")} for name in NAMES}
    assert (cluster.count(FindCoordinatorRequest), cluster.count(OffsetFetchRequest)) == (finds, fetches)


@pytest.mark.parametrize("versions", [NEW, OLD])
@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ([15], Errors.CoordinatorNotAvailableError),
        ([30], Errors.GroupAuthorizationFailedError),
        ([16, 14, 0], None),
        ([30, 0], None),  # said once is not believed
    ],
)
def test_what_fails_for_a_group_fails_for_it_alone(
    made: list[Brokers], versions: dict[Any, int], codes: list[int], kind: type[Exception] | None
) -> None:
    found, failures = run(made, Brokers(versions, {"bad": codes}), fetch_offsets, ["bad", "good", "homeless"])
    assert set(found) == {"good"} | ({"bad"} if kind is None else set())
    assert {name: type(error) for name, error in failures.items()} == {
        "homeless": Errors.CoordinatorNotAvailableError,
        **({"bad": kind} if kind else {}),
    }


@pytest.mark.parametrize(
    ("codes", "written", "kind"),
    [
        ([0], 0, None),
        ([25], 25, None),  # members: for the caller to say
        ([3], 3, None),
        ([16, 0], 0, None),
        ([15], None, Errors.CoordinatorNotAvailableError),
        ([14, 25], 25, None),
    ],
)
def test_commits_tell_partitions_from_coordinators(
    made: list[Brokers], codes: list[int], written: int | None, kind: type[Exception] | None
) -> None:
    cluster = Brokers(NEW, {"g": codes})
    found, failures = run(made, cluster, commit_offsets, {"g": {PLACE: CommittedOffset(5, "m")}})
    assert found == ({} if written is None else {"g": {PLACE: written}})
    assert {type(error) for error in failures.values()} == ({kind} if kind else set())
    sent = next(request for _, request in cluster.requests if isinstance(request, OffsetCommitRequest))
    (topic,) = sent.topics
    (part,) = topic.partitions
    assert (part.committed_offset, part.committed_metadata, part.committed_leader_epoch) == (5, "m", -1)
    assert (sent.generation_id_or_member_epoch, sent.member_id) == (-1, "")


def test_a_round_that_began_before_a_promotion_commits_nothing_behind_it(made: list[Brokers]) -> None:
    # 1. A round has decided.  2. It commits for the first groups.  3. The link is promoted.  4. The others are left alone.
    cluster = Brokers(NEW, {NAMES[0]: [16, 0]})
    wanted = {name: {PLACE: CommittedOffset(5, "")} for name in NAMES}
    committed: list[int] = []

    async def may_write() -> None:
        committed.append(cluster.count(OffsetCommitRequest))
        if committed[-1]:
            raise LinkPromotedError("promoted")

    with pytest.raises(LinkPromotedError):
        run(made, cluster, commit_offsets, wanted, may_write)
    assert cluster.count(OffsetCommitRequest) == committed[-1] < 20


def test_a_round_passes_on_what_asks_whether_it_may_still_commit(
    made: list[Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str, value: Any) -> None:
        async def tell(*_: Any) -> Any:
            return value

        monkeypatch.setattr(groups, name, tell)

    async def may_write() -> None:
        raise LinkPromotedError("promoted")

    answer("groups_home", GroupsHome(()))
    answer("fetch_offsets", ({"g": {}}, {}))
    answer("group_states", ({"g": "Empty"}, {}))
    cluster = Brokers(NEW)
    positions = groups.GroupPositions((GroupPosition("g", PLACE, 5, 5, "", False),), (), 0.0)

    async def round_of(target: Any) -> None:
        topics, every = LinkTopics(), TopicFilter()
        await groups.sync_groups(target, target, topics, every, positions=positions, may_write=may_write)

    with pytest.raises(LinkPromotedError):
        run(made, cluster, round_of)
    assert not cluster.count(OffsetCommitRequest)


def test_a_commit_that_is_sent_again_is_asked_for_again(made: list[Brokers]) -> None:
    cluster = Brokers(NEW, {"g": [16, 0]})
    asked: list[None] = []

    async def may_write() -> None:
        asked.append(None)

    run(made, cluster, commit_offsets, {"g": {PLACE: CommittedOffset(5, "")}}, may_write)
    assert len(asked) == cluster.count(OffsetCommitRequest) == 2


@pytest.mark.parametrize(
    ("codes", "is_written", "reason", "why", "sent"),
    [
        ([0], True, None, "", ["m"]),
        ([25], False, "members", "in use", ["m"]),
        ([27], False, "members", "in use", ["m"]),
        ([12, 0], True, None, "", ["m", ""]),  # the metadata is too large for the target
        ([12], False, "error", "OffsetMetadataTooLarge", ["m", ""]),
        ([29], False, "error", "A.orders-3: TopicAuthorizationFailedError; grant Read", ["m"]),
        ([30], False, "error", "grant Read", ["m"]),
        ([15], False, "error", "next round", None),
    ],
)
def test_what_the_target_makes_of_a_commit(
    made: list[Brokers], codes: list[int], is_written: bool, reason: str | None, why: str, sent: list[str] | None
) -> None:
    cluster = Brokers(NEW, {"g": codes})
    move = GroupMove(GroupPosition("g", PLACE, 5, 5, "m", False), -1)
    written, left = run(made, cluster, groups._write, [move])
    assert written == ([move] if is_written else [])
    assert [x.reason for x in left] == ([reason] if reason else []) and all(why in x.why for x in left)
    commits = [request for _, request in cluster.requests if isinstance(request, OffsetCommitRequest)]
    assert sent is None or [c.topics[0].partitions[0].committed_metadata for c in commits] == sent


def test_a_group_that_brokers_say_nothing_of_is_a_failure(made: list[Brokers]) -> None:
    found, failures = run(made, Brokers(NEW), fetch_offsets, ["good", "unheard of"])
    assert set(found) == {"good"} and set(failures) == {"unheard of"}


def test_what_a_broker_did_not_list_is_not_taken_for_idle(made: list[Brokers]) -> None:
    assert run(made, Brokers(NEW), group_states, ["gg", "other"]) == ({"gg": "Stable", "other": "Dead"}, {})
    states, failures = run(made, Brokers(NEW, {"broker 1": [14]}), group_states, ["gg", "ggg", "other"])
    assert states == {"gg": "Stable"} and set(failures) == {"ggg", "other"}


def test_old_brokers_are_asked_for_the_states_of_groups(made: list[Brokers]) -> None:
    cluster = Brokers(OLD)
    assert run(made, cluster, group_states, ["one", "three"]) == ({"one": "Empty", "three": "Empty"}, {})
    assert cluster.count(DescribeGroupsRequest) == 1


def test_a_group_that_may_not_be_described_is_a_failure_and_not_dead(made: list[Brokers]) -> None:
    """Brokers leave it out of their lists, as if it were not there."""
    cluster = Brokers(NEW, {"A-mm2": [Errors.GroupAuthorizationFailedError.errno]})
    states, failures = run(made, cluster, described_states, ["A-mm2", "one"])
    assert states == {"one": "Empty"} and isinstance(failures["A-mm2"], Errors.GroupAuthorizationFailedError)
    assert cluster.count(ListGroupsRequest) == 0


def test_brokers_that_tell_no_offsets_are_named(made: list[Brokers]) -> None:
    with pytest.raises(UnsupportedSourceError, match="0.10.2"):
        run(made, Brokers({**OLD, OffsetFetchRequest: 1}), fetch_offsets, ["g"])
