"""The links of a target, as `tolerant-kafka list` shows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life import listing, mirrors
from tolerant_client.mirror.life.listing import ListedLink, Listing
from tolerant_client.mirror.state.claims import Run
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, Controls, Unreadable
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.map_topic import map_topic
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter

MAPS = {map_topic("dr"), map_topic("tr")}
DR = LinkControl(source_cluster_id="A-id", topics=LinkTopics.of("orders").to_json(), producer_ids=(7,))


def there(*topics: str) -> Any:
    """A cluster with these topics."""

    async def partitions(wanted: Iterable[str] | None = None) -> dict[str, list[int]]:
        return {name: [0] for name in topics if wanted is None or name in wanted}

    return Mock(spec=Cluster, partitions=partitions, topic_of=str)


def run(link: str, *, is_alive: bool = False, is_ended: bool = False, pid: int = 5) -> Run:
    return Run(link, f"run-{pid}", "m1", pid, 0, 60_000, is_alive, is_ended, has_copied=is_alive)


def listed(controls: Controls, runs: list[Run] | None, maps: Iterable[str] = ()) -> tuple[ListedLink, ...]:
    return listing.listed(controls, runs, frozenset(maps)).links


def states(runs: list[Run] | None, **controls: LinkControl) -> dict[str, str]:
    return {found.link: found.state for found in listed(Controls(controls), runs, ())}


def test_each_link_says_from_where_it_copies_what_and_how() -> None:
    translated = LinkControl(source_cluster_id="A-id", topics=DR.topics)
    dr, tr = listed(Controls({"tr": translated, "dr": DR}), [], ["tr"])
    assert (dr.link, dr.offsets, dr.topics) == ("dr", "identical", "orders")
    assert (tr.link, tr.offsets) == ("tr", "translated")


def test_a_link_that_was_only_prepared_has_no_kind_of_offsets_yet() -> None:
    """failback prepares one: nothing on the target says yet how it will copy."""
    (back,) = listed(Controls({"back": replace(DR, producer_ids=())}), [], ())
    assert back.offsets_words == "not copied yet" and back.to_json()["offsets"] is None
    for prepared in (
        {"adopted": {TopicPartition("orders", 0): 5}},
        {"generation": 1},
    ):  # it may have copied for weeks before
        (back,) = listed(Controls({"back": replace(DR, producer_ids=(), **prepared)}), [], ())
        assert back.offsets_words == "none copied since failback or take-over prepared it"


def test_topics_are_data_in_json() -> None:
    also = LinkTopics(TopicFilter(("orders", "pay.*"), ("pay.old",)), also=(TopicFilter(("clicks",)),))
    (dr,) = listed(Controls({"dr": replace(DR, topics=also.to_json())}), [], ())
    orders, clicks = json.loads(json.dumps(dr.to_json()))["topics"]
    assert orders == {"include": ["orders", "pay.*"], "exclude": ["pay.old"]}
    assert clicks == {"include": ["clicks"], "exclude": []}


def test_which_offsets_a_link_has_is_what_its_target_has() -> None:
    """As status does: beside producer ids a map is what a former link of the name left."""
    controls = Controls({"dr": DR, "tr": replace(DR, producer_ids=()), "back": replace(DR, producer_ids=())})
    with patch.multiple(
        listing, look_at_claims=AsyncMock(return_value=None), read_controls=AsyncMock(return_value=controls)
    ):
        found = asyncio.run(listing.list_links(there(CONTROL_TOPIC, *MAPS)))
    assert (found.exit_code, found.unknown) == (0, None)
    assert {link.link: link.offsets_words for link in found.links} == {
        "back": "not copied yet",
        "dr": "identical",
        "tr": "translated",
    }


@pytest.mark.parametrize(
    ("looks", "sleeps"),
    [
        ([[]], 0),
        ([[run("dr", is_ended=True)]], 0),
        ([[run("dr")], [run("dr", is_alive=True), run("tr", is_ended=True, pid=6)]], 1),
        ([[run("dr")]] * 9, 4),  # one that was killed: as long as a mirror that runs may be silent
        # one that only waits is alive: for as long as the one for which it waits may hold its claim
        ([[run("dr"), replace(run("dr", is_alive=True, pid=6), holds=False)]] * 20, 10),
    ],
)
def test_a_list_waits_only_for_mirrors_that_may_run(looks: list[list[Run]], sleeps: int) -> None:
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    target = there()
    target.net = Mock(sleep=AsyncMock(side_effect=sleep))
    claims = [Mock(runs=Mock(return_value=runs)) for runs in looks]
    with patch.multiple(
        listing,
        look_at_claims=AsyncMock(side_effect=[Mock(), *claims]),
        read_controls=AsyncMock(return_value=Controls({})),
        lost_map=AsyncMock(return_value=None),
        can_tell_copies=AsyncMock(return_value=True),
        time=Mock(monotonic=lambda: now[0]),
    ):
        asyncio.run(listing.list_links(target))
    assert target.net.sleep.await_count == sleeps


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (None, "whether a mirror runs is unknown"),
        ([], "no mirror was seen in the last hour"),
        ([run("dr", is_alive=True)], "runs on m1, process 5, since"),
        ([run("dr", is_ended=True)], "ended on m1, process 5, at"),
        ([run("dr")], "last seen on m1, process 5, at"),
        ([run("dr", is_alive=True), run("dr", is_ended=True, pid=6)], "runs on m1, process 5, since"),
        ([run("other", is_alive=True)], "no mirror was seen in the last hour"),
    ],
)
def test_whether_a_mirror_runs_is_what_was_seen_of_it(runs: list[Run] | None, said: str) -> None:
    assert states(runs, dr=DR)["dr"].startswith(said)


def test_what_the_operator_has_said_comes_first() -> None:
    found = states(
        [],
        a=replace(DR, is_promotion_begun=True, is_fenced=True),
        half=replace(DR, is_promotion_begun=True),
        b=replace(DR, is_handed_back=True),
        c=replace(DR, paused=frozenset({"orders"})),
    )
    ending = "; no mirror was seen in the last hour"
    said = {"a": "promoted", "half": "promotion not finished", "b": "handed back", "c": "paused: topic orders"}
    assert found == {name: f"{words}{ending}" for name, words in said.items()}


def test_a_record_that_cannot_be_read_is_no_link_that_is_well() -> None:
    (found,) = listed(Controls({}, (Unreadable("dr", "no JSON", None),)), [], ())
    assert found.state == "unreadable: run tolerant-kafka repair" and found.topics == "unknown"
    assert found.offsets_words == "unknown" and found.to_json()["is_promoted"] is None


def test_a_mirror_that_runs_without_a_control_is_a_link_that_nobody_knows_more_of() -> None:
    """The control topic was deleted under it."""
    found = states([run("dr", is_alive=True), run("ended", is_ended=True)])
    assert (
        found["dr"].startswith("its control is gone, stop its mirror and start it again; runs on m1")
        and len(found) == 1
    )
    ordered = states([run("dr", is_alive=True)], dr=LinkControl(bytes_per_s=5))
    assert ordered["dr"].startswith("its control is gone"), "what was written since does not say what the link copies"
    first = replace(run("dr", is_alive=True), has_copied=False)
    assert states([first]) == {}, "a mirror writes the control before it copies"


def test_of_a_link_that_was_promoted_without_a_control_nothing_is_known() -> None:
    (found,) = listed(
        Controls({"dr": LinkControl(is_promotion_begun=True, is_fenced=True)}), [run("dr", is_alive=True)], ()
    )
    assert (found.offsets_words, found.topics) == ("unknown", "unknown") and found.state.startswith("promoted")


@pytest.mark.parametrize(
    ("file_options", "options"),
    [("", "--target b:1 --link dr --topics REGEX"), ("--config F --flow X", "--config F --flow X")],
)
@pytest.mark.parametrize("control", [LinkControl(), LinkControl(is_hidden=True), DR])
def test_a_command_that_finds_no_control_of_a_link_that_runs_says_that_it_runs(
    control: LinkControl, file_options: str, options: str
) -> None:
    """As the list does: the claims name the mirror.  With a file failover takes the topics from there."""
    target: Any = SimpleNamespace(
        bootstrap_servers="b:1",
        manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"}),
        file_options=file_options,
    )
    seen = AsyncMock(return_value=[run("dr", is_ended=True), run("dr", is_alive=True, pid=6)])
    read = AsyncMock(return_value=control)
    with patch.multiple(mirrors, look_at_claims=AsyncMock(), seen_mirrors=seen, read_control=read):
        if control == LinkControl():
            failover = f"run tolerant-kafka failover {options}$"
            with pytest.raises(
                OptionError, match=rf"on m1 \(process 6\).* Stop that mirror and start it again.*{failover}"
            ):
                asyncio.run(mirrors.require_not_forgotten(target, "dr", control))
            read.return_value = DR  # it had been read just before the first start wrote it
            asyncio.run(mirrors.require_not_forgotten(target, "dr", control))
            read.return_value, seen.return_value = control, [run("dr", is_ended=True)]
        asyncio.run(mirrors.require_not_forgotten(target, "dr", control))
        seen.return_value = None
        asyncio.run(mirrors.require_not_forgotten(target, "dr", control))


def found_on(topics: Iterable[str], **controls: LinkControl) -> Listing:
    with patch.multiple(
        listing, look_at_claims=AsyncMock(return_value=None), read_controls=AsyncMock(return_value=Controls(controls))
    ):
        return asyncio.run(listing.list_links(there(*topics)))


def test_a_cluster_without_controls_does_not_say_that_it_has_no_links() -> None:
    """Nor does its JSON."""
    none = found_on([CONTROL_TOPIC])
    assert (none.links, none.exit_code) == ((), 0)
    assert none.to_json() == {"links": [], "unknown": None, "exit_code": 0}
    unknown = found_on([]).to_json()
    assert (unknown["links"], unknown["exit_code"]) == ([], 3)
    assert unknown["unknown"].endswith(
        "which links it has is unknown: nothing was ever mirrored to it, the topic was deleted, or we may not describe it"
    )
    found = found_on([map_topic("tr")])
    assert [link["link"] for link in found.to_json()["links"]] == ["tr"] and found.exit_code == 3
    assert str(found.unknown).endswith("is unknown: the topic was deleted, or we may not describe it")


def test_a_link_of_which_only_the_map_is_left_is_listed_beside_those_with_a_control() -> None:
    """The topic was deleted, and one mirror was started again: it wrote the topic anew."""
    found = found_on([CONTROL_TOPIC, *MAPS], dr=DR)
    dr, tr = found.to_json()["links"]
    assert (dr["link"], dr["control"], tr["link"], tr["control"]) == ("dr", "known", "tr", "gone")
    assert (tr["offsets"], tr["topics"], tr["source_cluster_id"], tr["is_readable"]) == (
        "translated",
        None,
        None,
        False,
    )
    assert found.links[1].state.startswith(
        "its control is gone, start its mirror, or, if it was promoted or its source is gone,"
    )
    assert found.exit_code == 3 and str(found.unknown).startswith(f"{CONTROL_TOPIC} says nothing of link tr, so it was")
    ordered = found_on([CONTROL_TOPIC, *MAPS], dr=DR, tr=LinkControl(bytes_per_s=5))
    assert ordered.unknown == found.unknown, "what was ordered since does not say what it copies"
    told = found_on([CONTROL_TOPIC, *MAPS], dr=DR, tr=replace(DR, producer_ids=(), map_id="m"))
    assert (told.exit_code, told.unknown) == (0, None)


def test_a_map_whose_mirror_is_just_starting_has_no_control_yet() -> None:
    """It makes the map first."""
    first = replace(run("tr", is_alive=True), has_copied=False)
    found = listing.listed(Controls({"dr": DR}), [first], frozenset({"tr"}))
    assert [link.found for link in found.links] == ["known", "starting"] and found.exit_code == 0
    assert found.links[1].state.startswith("its control is not written yet; runs on m1")
    found = listing.listed(Controls({"dr": DR}), [replace(first, has_copied=True)], frozenset({"tr"}))
    assert [link.found for link in found.links] == ["known", "gone"] and found.exit_code == 3


def test_a_mirror_that_copied_in_the_last_hour_names_its_link_also_once_it_has_ended() -> None:
    """With identical offsets nothing else does after the control was deleted."""
    ended = replace(run("dr", is_ended=True), has_copied=True)
    found = listing.listed(Controls({}), [ended], frozenset())
    assert [(link.link, link.found, link.offsets) for link in found.links] == [("dr", "gone", None)]
    assert (found.links[0].offsets_words, found.exit_code) == ("unknown", 3) and "says nothing of link dr," in str(
        found.unknown
    )
    assert listing.listed(Controls({"dr": DR}), [ended], frozenset()).exit_code == 0


def test_a_record_that_cannot_be_read_needs_attention() -> None:
    found = listing.listed(Controls({}, (Unreadable("tr", "no JSON", None),)), [], frozenset({"tr"}))
    assert [link.found for link in found.links] == ["unreadable"]
    assert (found.exit_code, found.unknown) == (3, None), "which links there are is known"
