"""Which flow of a file a link is."""

from __future__ import annotations

import pytest

from tolerant_client.mirror.state.link_name import Aliases, flow_back


@pytest.mark.parametrize(
    ("link", "flow"),
    [
        ("us-east-1-eu-west", "us-east-1->eu-west"),
        ("us-east-1-eu-west-2", "us-east-1->eu-west-2"),  # another file, which calls the target otherwise
        ("dr-us-east-1-eu-west", "dr-us-east-1->eu-west"),
        ("way-back", ""),  # the operator's own name
        ("-back-", ""),
        ("back", ""),
    ],
)
def test_aliases_with_hyphens_are_not_cut(link: str, flow: str) -> None:
    assert flow_back(link, {"eu-west-us-east-1": Aliases("eu-west", "us-east-1")}) == flow


def test_a_flow_is_named_by_its_clusters_whatever_aliases_its_topics_have() -> None:
    forward = {"other-there": Aliases("other", "there"), "eu-west-us-east-1": Aliases("A", "B")}
    assert flow_back("us-east-1-eu-west", forward) == "us-east-1->eu-west"
    assert flow_back("us-east-1-eu-west", {}) == "", "no file has named a link"
    assert flow_back("a-b-a-b", {"b-a-b-a": Aliases("b", "a-b-a")}) == "a-b-a->b"
