"""The table of lost responses is complete, names its sources, and is the same in the documentation."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.structs import TopicPartition

from support.tree import ROOT
from tolerant_client.cluster.fetch import RawFetch
from tolerant_client.cluster.produce import RawProduce
from tolerant_client.tracker.policy import RecoveryPolicy
from tolerant_client.tracker.rules import api_rows as rows
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.api_rows import Action, ApiRow

CARE = [
    Action.RESEND,
    Action.SAME_BYTES,
    Action.HAND_UP,
    Action.OUTCOME_UNKNOWN,
    Action.CLOSE,
]  # from the least careful to the most
TABLE = {name: row for name, row in vars(rows).items() if isinstance(row, ApiRow) and row is not rows.NOT_KNOWN}


def schema_names() -> Iterator[tuple[int, str]]:
    """API key and name of every request that kafka-python has a schema for."""
    for entry in resources.files("kafka.protocol.schemas.resources").iterdir():
        if entry.name.endswith("Request.json"):
            schema = json.loads(re.sub(r"^\s*//.*$", "", entry.read_text(encoding="utf-8"), flags=re.M))
            yield schema["apiKey"], schema["name"]


def request_classes() -> Iterator[tuple[int, str]]:
    """API key and name of every request class, version classes left out."""
    for module in ("admin", "consumer", "metadata", "producer", "sasl"):
        importlib.import_module(f"kafka.protocol.{module}")
    waiting: list[Any] = [ApiMessage]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind._json is not None and kind.type == "request":
                yield kind.API_KEY, kind.name


@pytest.mark.parametrize("found", [schema_names, request_classes])
def test_every_request_of_kafka_python_has_a_row(found: Any) -> None:
    known = {key: f"{api.name}Request" for key, api in apis.APIS.items()}
    assert dict(found()) == known


def test_every_row_belongs_to_an_api() -> None:
    used = {row for api in apis.APIS.values() for row in api.rows}
    assert used == set(TABLE.values())


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_every_row_says_why_and_where_and_what_a_repeat_shows(row: ApiRow) -> None:
    assert row.reason and row.source and row.repeat_shows
    assert "|" not in row.reason + row.source + row.repeat_shows + row.when


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_unknown_outcomes_say_how_to_find_out(row: ApiRow) -> None:
    assert bool(row.check) is (row.action is Action.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: str(api.name))
def test_last_row_of_an_api_assumes_least_and_the_others_are_named(api: apis.Api) -> None:
    care = [CARE.index(row.action) for row in api.rows]
    assert care[-1] == max(care)
    assert all(row.when for row in api.rows[:-1])
    assert len({row.when for row in api.rows}) == len(api.rows)


def test_every_row_is_shown_on_a_broker() -> None:
    files = sorted((ROOT / "tests" / "brokers").glob("test_repeated_*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name in TABLE if not re.search(rf"\brows\.{name}\b", source)] == []


class Bare(apis.Request):
    """A request that tells only its API, and perhaps `resend_safe`."""

    expect_response = frame_buffers = decode_response = None

    def __init__(self, api_key: int, resend_safe: bool | None = None) -> None:
        self.API_KEY = api_key
        self.resend_safe = resend_safe


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (Bare(apis.PRODUCE), rows.PRODUCE_PLAIN),
        (Bare(apis.PRODUCE, True), rows.PRODUCE_IDEMPOTENT),
        (Bare(apis.PRODUCE, False), rows.PRODUCE_PLAIN),
        (Bare(apis.FETCH), rows.FETCH_IN_SESSION),
        (Bare(apis.FETCH, True), rows.FETCH_ALONE),
        (Bare(apis.JOIN_GROUP), rows.JOIN_GHOST),
        (Bare(apis.LIST_OFFSETS), rows.READ_ONLY),
        (Bare(apis.LIST_OFFSETS, False), rows.NOT_KNOWN),
        (Bare(9_999), rows.NOT_KNOWN),
        (Bare(9_999, True), rows.NOT_KNOWN),
    ],
    ids=lambda value: f"{value.API_KEY}-{value.resend_safe}" if isinstance(value, Bare) else "",
)
def test_request_that_says_little_falls_under_the_row_that_assumes_least(request_: Bare, row: ApiRow) -> None:
    assert request_.row is row
    assert apis.action_for(request_) is row.action


def test_nothing_is_known_of_an_unknown_api() -> None:
    assert rows.NOT_KNOWN.action is Action.HAND_UP


def test_only_plain_produce_is_allowed_by_the_policy() -> None:
    assert apis.action_for(Bare(apis.PRODUCE), RecoveryPolicy(resend_plain_produce=True)) is Action.RESEND
    for key in apis.APIS:
        if key != apis.PRODUCE:
            assert apis.action_for(Bare(key), RecoveryPolicy(resend_plain_produce=True)) is apis.action_for(Bare(key))


def test_raw_requests_fall_under_the_rows_they_mean() -> None:
    partition = TopicPartition("t", 0)
    batch = memoryview(bytes(61))
    produce = RawProduce(7, {partition: batch}, 1_000)
    assert produce.row is rows.PRODUCE_PLAIN
    assert apis.action_for(produce, RecoveryPolicy(resend_plain_produce=True)) is Action.OUTCOME_UNKNOWN

    def fetch(epoch: int) -> RawFetch:
        return RawFetch(
            11, {partition: 0}, max_wait_ms=1, max_bytes=1, partition_max_bytes=1, session_id=7, session_epoch=epoch
        )

    assert fetch(-1).row is rows.FETCH_ALONE
    assert fetch(0).row is fetch(3).row is rows.FETCH_IN_SESSION


def test_resends_are_the_two_actions_that_send_again() -> None:
    assert [action for action in Action if action.is_resend] == [Action.RESEND, Action.SAME_BYTES]


def test_the_page_of_requests_shows_this_table() -> None:
    readme = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    _, _, rest = readme.partition("<!-- apis:begin -->\n")
    block, end, _ = rest.partition("<!-- apis:end -->")
    assert end and block == apis.as_markdown() + "\n", "write it with: python -m tolerant_client.tracker.rules.apis"


def test_module_prints_the_table() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tolerant_client.tracker.rules.apis"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert printed.stdout == apis.as_markdown() + "\n"
