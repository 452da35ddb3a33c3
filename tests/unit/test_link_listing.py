"""The links of a target, as `tolerant-kafka list` shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tolerant_client.mirror.link.claims import Run
from tolerant_client.mirror.link.control import Controls, LinkControl, Unreadable
from tolerant_client.mirror.link.listing import listed
from tolerant_client.mirror.topic_filter import LinkTopics

DR = LinkControl(source_cluster_id="A-id", topics=LinkTopics.of("orders").to_json(), producer_ids=(7,))


def run(link: str, *, is_alive: bool = False, is_ended: bool = False, pid: int = 5) -> Run:
    return Run(link, f"run-{pid}", "m1", pid, 0, 60_000, is_alive, is_ended)


def states(runs: list[Run] | None, **controls: LinkControl) -> dict[str, str]:
    return {found.link: found.state for found in listed(Controls(controls), runs)}


def test_each_link_says_from_where_it_copies_what_and_how() -> None:
    translated = LinkControl(source_cluster_id="A-id", topics=DR.topics)
    dr, tr = listed(Controls({"tr": translated, "dr": DR}), [])
    assert (dr.link, dr.offsets, dr.topics) == ("dr", "identical", "'orders'")
    assert (tr.link, tr.offsets) == ("tr", "translated")


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
    found = states([], a=replace(DR, is_promoted=True), b=replace(DR, is_handed_back=True), c=replace(DR, paused=frozenset({"orders"})))
    ending = "; no mirror was seen in the last hour"
    assert found == {"a": f"promoted{ending}", "b": f"handed back{ending}", "c": f"paused: topic orders{ending}"}


def test_a_record_that_cannot_be_read_is_no_link_that_is_well() -> None:
    (found,) = listed(Controls({}, (Unreadable("dr", "no JSON", None),)), [])
    assert found.state == "unreadable: run tolerant-kafka repair" and found.topics == "unknown"
    assert found.to_json()["is_promoted"] is None
