"""While one cluster of a link does not respond, `status` shows what the other one tells, and calls the rest unknown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.mirror.life import status_of_one
from tolerant_client.mirror.life.lens import PartitionLag, SourceEnds
from tolerant_client.mirror.life.status import LinkStatus
from tolerant_client.mirror.life.status_of_one import read_known_status
from tolerant_client.mirror.life.topic_status import TopicStatus, topics_of
from tolerant_client.mirror.state.health import Health, Reason
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import LinkView
from tolerant_client.mirror.state.topic_filter import LinkTopics

P = TopicPartition("orders", 0)


def cluster(name: str, *, is_away: bool) -> Any:
    async def connect() -> None:
        if is_away:
            raise ClusterUnreachableError(f"The {name} could not be reached", name)

    async def partitions() -> dict[str, list[int]]:
        return {"orders": [0], "other": [0]}

    return SimpleNamespace(name=name, connect=connect, partitions=partitions)


def known(
    monkeypatch: pytest.MonkeyPatch, *away: str, is_promoted: bool = False, reasons: tuple[Reason, ...] = ()
) -> LinkStatus:
    async def read(*_: Any, is_source_away: bool, of_file: bool) -> LinkStatus:
        assert of_file and is_source_away == ("source" in away)
        return LinkStatus("dr", 0, False, is_promoted, None, 1.0, (), reasons)

    async def ends(_: Any, partitions: Any) -> SourceEnds:
        assert list(partitions) == [P]
        return SourceEnds({P: 9}, {P: 7}, {})

    monkeypatch.setattr(status_of_one, "read_status", read)
    monkeypatch.setattr(status_of_one, "source_ends", ends)
    both = (cluster(name, is_away=name in away) for name in ("source", "target"))
    return asyncio.run(read_known_status(*both, "dr", LinkTopics.of("orders"), of_file=True))


def test_with_the_source_away_the_target_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Reason(Health.WAITING, "orders-0 waits")
    assert known(monkeypatch, reasons=(waits,)).reasons == (waits,)
    found = known(monkeypatch, "source", reasons=(waits,))
    assert (found.health, found.exit_code, found.reasons[1:]) == (Health.UNKNOWN, 3, (waits,))
    assert found.reasons[0].text == "The source cluster does not respond: The source could not be reached"
    blocked = Reason(Health.BLOCKED, "orders-0 is blocked")
    assert known(monkeypatch, "source", reasons=(blocked,)).health is Health.BLOCKED
    over = known(monkeypatch, "source", is_promoted=True)
    assert (over.health, over.reasons) == (Health.PROMOTED, ()), "the source is not missed"


def test_with_the_target_away_the_source_tells_how_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = known(monkeypatch, "target")
    assert (found.health, found.exit_code, found.is_promoted, found.copied_per_s) == (Health.UNKNOWN, 3, None, None)
    assert found.reasons[0].text == "The target cluster does not respond: The target could not be reached"
    (orders,) = found.topics
    assert (orders.source_end, orders.copied, orders.lag, orders.open_offsets) == (9, None, None, 2)
    assert found.to_json()["topics"][0]["lag"] is None


def test_with_both_away_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterUnreachableError, match="The target could not be reached"):
        known(monkeypatch, "source", "target")


def test_what_only_a_silent_source_tells_is_unknown_and_not_zero() -> None:
    (orders,) = topics_of([PartitionLag(P, 563)], 0, LinkControl(), {})
    assert orders == TopicStatus("orders", 1, None, 563, None, None, None, None)


def test_with_the_source_away_no_topic_is_gone_and_the_links_topics_are_those_that_it_began() -> None:
    view = LinkView({}, {"orders": [0], "others": [0]}, {"orders": [0], "others": [0]}, {})
    assert view.of_target_alone({P}) == LinkView({"orders": [0]}, view.on_target, {}, {})
    assert view.of_target_alone((), {"orders"}).on_source == {"orders": [0]}
    assert view.of_target_alone(set()).on_source == view.on_target, "an old control does not say what was begun"


def test_what_was_deleted_on_the_target_is_missing_also_with_the_source_away() -> None:
    hidden = TopicPartition("hidden", 0)
    view = LinkView({}, {"orders": [0], "others": [0]}, {}, {hidden: "no right"})
    begun = {P, TopicPartition("orders", 1), TopicPartition("deleted", 0), hidden}
    assert view.of_target_alone(begun).on_source == {"orders": [0, 1], "deleted": [0]}
