"""What MirrorMaker 2 is told when a link is given back to it, and when it is told nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from spark_integration.cli.exits import exit_code
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, LinkPromotedError, OptionError, TolerantClientError
from tolerant_client.mirror.life import handback
from tolerant_client.mirror.life.failback import begin_again, is_live
from tolerant_client.mirror.life.handback import HandedPartition, decide_positions, hand_back, require_ran
from tolerant_client.mirror.state.control_record import decode_control, encode_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.mm2_positions import Mm2Position
from tolerant_client.mirror.state.offset_map import MapRow, Run, begun_again, extend
from tolerant_client.mirror.state.topic_filter import LinkTopics

PLACE = TopicPartition("orders", 0)
TOPICS = LinkTopics.of("orders")
RAN = LinkControl(source_cluster_id="one", topics=TOPICS.to_json(), producer_ids=(7,))


def known(offset: int) -> dict[TopicPartition, Mm2Position]:
    return {PLACE: Mm2Position(offset, b"key", 3)}


def test_mirrormaker_2_goes_on_where_the_link_has_stopped() -> None:
    assert decide_positions({PLACE: 150}, known(100)) == ([HandedPartition("orders", 0, 100, 150)], [])
    assert decide_positions({PLACE: 100}, known(100)) == ([], [])


def test_it_is_never_set_back_to_before_its_own_note() -> None:
    changed, (text,) = decide_positions({PLACE: 90}, known(100))
    assert not changed and "position of orders-0 is 100" in text and "only up to 90" in text
    assert "it has run since" in text and "Or the source was truncated or its topic created again since" in text, (
        "nobody knows which"
    )


def test_a_log_that_was_cut_and_of_which_nothing_is_copied_since_is_the_links_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where MirrorMaker 2 has a position of its own, or none, it would leave something out, or copy it again."""
    (former,) = extend(None, PLACE, "A.orders", ("one", "two"), [Run(0, 400, 100)], 100, 7)
    anew = begun_again(former, ("one", "two"), 60, 60)
    (begun_only,) = extend(None, PLACE, "A.orders", ("one", "two"), [], 60, 7)
    rows = {PLACE: anew}

    async def last_rows(*_: Any) -> dict[TopicPartition, MapRow]:
        return rows

    async def copied_until(_: Any, __: str, partitions: Any) -> dict[TopicPartition, int]:
        return {p: rows[p].position for p in partitions}

    monkeypatch.setattr(handback, "last_rows", last_rows)
    monkeypatch.setattr(handback, "copied_until", copied_until)
    target = cast(Cluster, FakeCluster())
    assert asyncio.run(handback._translated_until(target, "A-B", [PLACE])) == {PLACE: 60}
    rows = {PLACE: begun_only}
    with pytest.raises(OptionError, match="has copied nothing"):
        asyncio.run(handback._translated_until(target, "A-B", [PLACE]))


def test_what_it_has_never_copied_is_in_the_way_unless_it_is_empty() -> None:
    _, (text,) = decide_positions({PLACE: 5}, {})
    assert "orders-0" in text and "leave these topics out" in text
    assert decide_positions({PLACE: 0}, {}) == ([], [])


class FakeCluster:
    """Either side of a link; its log's end is the next of `ends`."""

    def __init__(self, *ends: int | Exception) -> None:
        self.ends = list(ends)
        self.net = self

    async def connect(self) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        pass

    async def cluster_id(self) -> str:
        return "one"

    async def partitions(self) -> dict[str, list[int]]:
        return {"orders": [0]}

    def wire_topic(self, topic: str) -> str:
        return topic

    async def list_offsets(self, wanted: Any) -> dict[TopicPartition, int]:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return dict.fromkeys(wanted, end)


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (160, "still ran: it stops now"),
        (ClusterUnreachableError("away"), "away; handing back has begun and is not finished"),
    ],
)
def test_what_goes_wrong_behind_the_control_is_a_failure_that_the_same_command_mends(
    monkeypatch: pytest.MonkeyPatch, again: int | Exception, words: str
) -> None:
    controls = [RAN]

    def respond(name: str, value: Any) -> None:
        async def tell(*_: Any) -> Any:
            return value

        monkeypatch.setattr(handback, name, tell)

    async def update(_: Any, __: str, change: Any) -> None:
        controls.append(change(controls[-1]))

    respond("read_control", RAN)
    respond("shared_partitions", [PLACE])
    respond("read_positions_of_mm2", known(100))
    respond("whether_mm2_runs", ())
    respond("_identical_until", ({PLACE: 150}, []))
    monkeypatch.setattr(handback, "update_control", update)
    both = cast(Cluster, FakeCluster()), cast(Cluster, FakeCluster(again))
    with pytest.raises(TolerantClientError, match=words) as caught:
        hand_back(*both, "A-B", TOPICS, "A").send(None)
    assert controls[-1].is_handed_back and exit_code(caught.value) == 1, "2 says that nothing was written"


@pytest.mark.parametrize(
    ("control", "is_translated", "why"),
    [
        (LinkControl(), False, "nothing to hand back"),
        (LinkControl(), True, "nothing to hand back"),
        (replace(RAN, producer_ids=()), False, "nothing to hand back"),  # taken over, never started
        (replace(RAN, source_cluster_id="other"), False, "copied from cluster other"),
        (replace(RAN, is_promotion_begun=True), False, "was promoted"),
        (RAN, False, None),
        (replace(RAN, is_handed_back=True), False, None),  # killed on the way
        (replace(RAN, producer_ids=()), True, None),
    ],
)
def test_only_a_link_that_has_copied_from_this_source_is_handed_back(
    control: LinkControl, is_translated: bool, why: str | None
) -> None:
    if why is None:
        require_ran(control, "A-B", "one", is_translated=is_translated)
    else:
        with pytest.raises(OptionError, match=why):
            require_ran(control, "A-B", "one", is_translated=is_translated)


def test_a_link_that_was_handed_back_copies_nothing_until_it_is_taken_over_again() -> None:
    handed, target = replace(RAN, is_handed_back=True), cast(Cluster, None)
    assert decode_control(encode_control(handed, 1)) == handed
    with pytest.raises(LinkPromotedError, match="take-over"):
        handed.require_not_promoted("A-B", target)
    assert is_live(RAN) and not is_live(handed)
    again = begin_again(handed, "one", TOPICS, {PLACE: 150})
    again.require_not_promoted("A-B", target)
    assert (again.generation, again.producer_ids, again.adopted) == (1, (), {PLACE: 150})
    assert begin_again(again, "one", TOPICS, {PLACE: 150}) == again, "run twice it says the same"
