"""How many groups share a request, and what fails for which of them."""

from __future__ import annotations

from typing import Any

import kafka.errors as Errors
import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from support.group_brokers import NAMES, NEW, OLD, PLACE, Brokers, run
from tolerant_client.cluster.admin import groups as admin_groups
from tolerant_client.cluster.admin.groups import (
    CommittedOffset,
    GroupsHome,
    ListedGroup,
    OffsetsPartition,
    commit_offsets,
    described_states,
    fetch_offsets,
    group_states,
)
from tolerant_client.errors import LinkPromotedError, UnsupportedSourceError
from tolerant_client.stock.coordinator_partition import partition_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_groups, "_READ_PATIENCE_MS", 150)
    monkeypatch.setattr(admin_groups, "_COMMIT_PATIENCE_MS", 150)


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


@pytest.mark.parametrize(("versions", "finds", "fetches"), [(NEW, 2, 2), (OLD, 300, 300)])
def test_many_groups_share_requests_where_the_brokers_can(versions: dict[Any, int], finds: int, fetches: int) -> None:
    cluster = Brokers(versions)
    found, failures = run(cluster, fetch_offsets, NAMES)
    assert not failures and found == {name: {PLACE: CommittedOffset(len(name), "")} for name in NAMES}
    assert (cluster.count(FindCoordinatorRequest), cluster.count(OffsetFetchRequest)) == (finds, fetches)


@pytest.mark.parametrize("versions", [NEW, OLD])
@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ([15], Errors.CoordinatorNotAvailableError),
        ([30], Errors.GroupAuthorizationFailedError),
        ([16, 14, 0], None),
        ([30, 0], None),  # an error is not believed when it comes once
    ],
)
def test_what_fails_for_a_group_fails_for_it_alone(
    versions: dict[Any, int], codes: list[int], kind: type[Exception] | None
) -> None:
    found, failures = run(Brokers(versions, {"bad": codes}), fetch_offsets, ["bad", "good", "homeless"])
    assert set(found) == {"good"} | ({"bad"} if kind is None else set())
    assert {name: type(error) for name, error in failures.items()} == {
        "homeless": Errors.CoordinatorNotAvailableError,
        **({"bad": kind} if kind else {}),
    }


@pytest.mark.parametrize(
    ("codes", "written", "kind"),
    [
        ([0], 0, None),
        ([25], 25, None),  # it has members: left to the caller
        ([3], 3, None),
        ([16, 0], 0, None),
        ([15], None, Errors.CoordinatorNotAvailableError),
        ([14, 25], 25, None),
    ],
)
def test_commits_tell_partitions_from_coordinators(
    codes: list[int], written: int | None, kind: type[Exception] | None
) -> None:
    cluster = Brokers(NEW, {"g": codes})
    found, failures = run(cluster, commit_offsets, {"g": {PLACE: CommittedOffset(5, "m")}})
    assert found == ({} if written is None else {"g": {PLACE: written}})
    assert {type(error) for error in failures.values()} == ({kind} if kind else set())
    sent = next(request for _, request in cluster.requests if isinstance(request, OffsetCommitRequest))
    (topic,) = sent.topics
    (part,) = topic.partitions
    assert (part.committed_offset, part.committed_metadata, part.committed_leader_epoch) == (5, "m", -1)
    assert (sent.generation_id_or_member_epoch, sent.member_id) == (-1, "")


def test_a_round_that_began_before_a_promotion_commits_nothing_behind_it() -> None:
    # 1. A round has decided.  2. It commits for the first groups.  3. The link is promoted.  4. The others are left alone.
    cluster = Brokers(NEW, {NAMES[0]: [16, 0]})
    wanted = {name: {PLACE: CommittedOffset(5, "")} for name in NAMES}
    committed: list[int] = []

    async def may_write() -> None:
        committed.append(cluster.count(OffsetCommitRequest))
        if committed[-1]:
            raise LinkPromotedError("promoted")

    with pytest.raises(LinkPromotedError):
        run(cluster, commit_offsets, wanted, may_write)
    assert cluster.count(OffsetCommitRequest) == committed[-1] < 20


def test_a_commit_that_is_sent_again_is_asked_for_again() -> None:
    cluster = Brokers(NEW, {"g": [16, 0]})
    asked: list[None] = []

    async def may_write() -> None:
        asked.append(None)

    run(cluster, commit_offsets, {"g": {PLACE: CommittedOffset(5, "")}}, may_write)
    assert len(asked) == cluster.count(OffsetCommitRequest) == 2


def test_a_group_that_brokers_say_nothing_of_is_a_failure() -> None:
    found, failures = run(Brokers(NEW), fetch_offsets, ["good", "unheard of"])
    assert set(found) == {"good"} and set(failures) == {"unheard of"}


def test_what_a_broker_did_not_list_is_not_taken_for_idle() -> None:
    assert run(Brokers(NEW), group_states, ["gg", "other"]) == ({"gg": "Stable", "other": "Dead"}, {})
    states, failures = run(Brokers(NEW, {"broker 1": [14]}), group_states, ["gg", "ggg", "other"])
    assert states == {"gg": "Stable"} and set(failures) == {"ggg", "other"}


def test_old_brokers_are_asked_for_the_states_of_groups() -> None:
    cluster = Brokers(OLD)
    assert run(cluster, group_states, ["one", "three"]) == ({"one": "Empty", "three": "Empty"}, {})
    assert cluster.count(DescribeGroupsRequest) == 1


def test_a_group_that_may_not_be_described_is_a_failure_and_not_dead() -> None:
    """Brokers leave it out of their lists, as if it did not exist."""
    cluster = Brokers(NEW, {"A-mm2": [Errors.GroupAuthorizationFailedError.errno]})
    states, failures = run(cluster, described_states, ["A-mm2", "one"])
    assert states == {"one": "Empty"} and isinstance(failures["A-mm2"], Errors.GroupAuthorizationFailedError)
    assert cluster.count(ListGroupsRequest) == 0


def test_brokers_that_tell_no_offsets_are_named() -> None:
    with pytest.raises(UnsupportedSourceError, match="0.10.2"):
        run(Brokers({**OLD, OffsetFetchRequest: 1}), fetch_offsets, ["g"])
