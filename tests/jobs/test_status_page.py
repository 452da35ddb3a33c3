"""The status page in a real browser: what it shows is what the server says, and it asks nobody else."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from support.browser import Browser, chromium
from support.link_samples import HOSTILE, hour, state, troubled
from tolerant_client.mirror.state.claims_record import Waiting
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, OpenTransaction
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.service.link_state import DutyState, GroupState, LinkState, Phase

ROWS = "return [...document.querySelectorAll(arguments[0])]"
NOW_MS = int(time.time() * 1000) + 7_200_000  # ahead: no sample is old while all tests run
PICTURES = os.environ.get("TOLERANT_PICTURES")  # a folder for screenshots


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def board() -> Board:
    made = Board()
    hour(made, troubled(NOW_MS), step_ms=30_000)
    return made


@pytest.fixture
def served(board: Board, browser: Browser) -> Iterator[StatusServer]:
    """A server, and the page of it open; after the test the console must be empty, and nobody else have been asked."""
    with StatusServer(board, "127.0.0.1:0") as made:
        browser.driver.get("about:blank")
        browser.errors()
        browser.requested()
        browser.emulate()
        browser.driver.get(made.url)
        browser.until("return document.body.dataset.shown")
        yield made
        assert browser.errors() == []
        assert browser.requested() == {made.url.rstrip("/")}
        browser.driver.get("about:blank")


def state_of(served: StatusServer, query: str = "") -> dict[str, Any]:
    with urllib.request.urlopen(f"{served.url}api/state.json?{query}", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_numbers_are_those_of_the_server(served: StatusServer, browser: Browser) -> None:
    link = state_of(served)["link"]
    for name in ("lag_offsets", "lag_bytes", "lag_seconds", "offsets_per_s", "bytes_per_s", "records", "bytes"):
        assert browser.value(f"#{name}") == link["totals"][name], name
    assert browser.value("#latency_mean") == link["totals"]["latency_ms"]["mean"]
    for name in ("restarts", "lost_offsets", "ledger_count", "standing_count"):
        assert browser.value(f"#{name}") == link[name], name
    assert browser.value("#fault_count") == sum(link["faults"].values()) - link["faults"]["requeued"] == 28
    assert [browser.text(f"#lag_{unit}") for unit in ("offsets", "bytes", "seconds")] == ["11.2 k", "2.7 MiB", "11 s"]
    rows = browser.run(f"{ROWS}.map((r) => [r.dataset.topic, +r.dataset.lag])", "#topics tbody tr")
    assert rows == [[topic["topic"], topic["lag_offsets"]] for topic in link["topics"]]
    faults = browser.run(f"{ROWS}.map((r) => [r.dataset.kind, +r.dataset.value])", "#faults tbody tr")
    assert dict(faults) == {kind: n for kind, n in link["faults"].items() if n}
    assert browser.texts("#groups tbody td:first-child") == ["billing", "search"]


def test_texts_are_shown_as_they_are_and_never_run(served: StatusServer, browser: Browser) -> None:
    assert browser.text("#ledger tbody td:last-child") == HOSTILE
    assert browser.text("#standing tbody td:last-child") == f"audit.log-2: {HOSTILE}"
    assert any(HOSTILE in text for text in browser.texts("#reasons li"))
    assert HOSTILE in browser.text("#worst")
    assert browser.run("return document.images.length + document.scripts.length") == 1  # the page's own script
    assert "owned" not in browser.driver.title


def test_health_is_told_in_words_to_everybody(served: StatusServer, browser: Browser, board: Board) -> None:
    assert browser.text("#level") == "blocked" and browser.text("#worst") == f": audit.log-2: {HOSTILE}"
    assert len(browser.texts("#reasons li")) == 1
    assert browser.texts("#standing tbody td")[:2] == ["audit.log-2", "blocked"]
    assert browser.run("return document.getElementById('health').getAttribute('role')") == "status"
    board.tell(replace(state(NOW_MS + 4_000), unreachable={"source": "connection refused"}))
    browser.until("return document.getElementById('level').textContent === 'unknown'")
    assert browser.text("#worst") == ": The source cluster does not respond: connection refused"
    assert browser.text("#ledger tbody td") == "empty when last read"
    board.tell(state(NOW_MS + 8_000))
    browser.until("return document.getElementById('level').textContent === 'healthy'")
    assert not browser.run("return document.getElementById('standing-section').checkVisibility()")
    assert browser.text("#ledger tbody td") == "empty: nothing was lost"


def test_what_nobody_has_seen_is_no_good_news(served: StatusServer, browser: Browser, board: Board) -> None:
    board.tell(LinkState("A-B", 0, NOW_MS, "A", "B", phase=Phase.RESTARTING, problem="both are away", restarts=4))
    browser.until("return document.getElementById('level').textContent === 'waiting'")
    assert browser.text("#worst") == ": The mirror is started again: both are away"
    assert (browser.text("#ledger tbody td"), browser.text("#lost_offsets")) == ("unknown: it was not read yet", "–")
    assert browser.text("#restarts") == "4" and "checked not yet" in browser.text("#updated")


def test_an_open_transaction_and_a_refusing_broker_are_named_with_their_partitions(
    served: StatusServer, browser: Browser, board: Board
) -> None:
    orders, clicks = TopicPartition("orders", 0), TopicPartition("clicks", 1)
    one = OpenTransaction(clicks, 7, 0, 100, NOW_MS - 600_000, 50)
    now = state(NOW_MS + 4_000)
    held = replace(now.partitions[clicks], stable_end=(now.partitions[clicks].source_end or 0) - 50)
    waiting = {orders: Waiting("append answered NotEnoughReplicasError", NOW_MS - 60_000)}
    board.tell(
        replace(
            now,
            partitions={**now.partitions, clicks: held},
            report=replace(now.report, waiting=waiting),
            held=(Held(clicks, 100, 50, one, None, "kafka-transactions.sh abort"),),
        )
    )
    browser.until("return document.getElementById('level').textContent === 'waiting'")
    assert browser.texts("#standing tbody td:first-child") == ["orders-0", "clicks-1"]
    assert "NotEnoughReplicasError" in browser.text("#worst")
    assert "producer id 7" in browser.texts("#standing tbody td:last-child")[1]
    assert browser.text("#uncommitted") == "50 wait for open transactions"


def test_charts_have_an_hour_a_line_for_each_topic_and_a_text_for_who_cannot_see_them(
    served: StatusServer, browser: Browser
) -> None:
    link = state_of(served)["link"]
    for chart in ("lag", "rate", "age"):
        lines = browser.run(f"{ROWS}.map((p) => p.getAttribute('d'))", f"#chart-{chart} path")
        assert len(lines) == 6 and all(line.startswith("M") and "NaN" not in line for line in lines)
        label = browser.run("return document.querySelector(arguments[0]).getAttribute('aria-label')", f"#chart-{chart}")
        assert "all topics now" in label and "sessions now" in label
    drawn = browser.run("return document.querySelector('#chart-lag .total').getAttribute('d').match(/[ML]/g).length")
    assert drawn == len(link["past"]["time_ms"]) > 100
    assert browser.texts("#legend-lag b")[0] == "11.2 k"


def test_topic_shows_its_own_hour_and_partitions(served: StatusServer, browser: Browser) -> None:
    browser.run("[...document.querySelectorAll('button.topic')].find((b) => b.textContent === 'audit.log').click()")
    browser.until("return document.getElementById('partitions-section').checkVisibility()")
    assert browser.texts("#legend-lag span") == ["audit.log"]
    assert browser.texts("#partitions tbody td:first-child") == ["0", "1", "2", "3"]
    assert browser.texts("#partitions tbody td:nth-child(4)") == ["300"] * 4
    assert browser.run("return document.querySelector('button.topic[aria-pressed=true]').textContent") == "audit.log"
    browser.run("document.querySelector('button.topic[aria-pressed=true]').click()")
    browser.until("return !document.getElementById('partitions-section').checkVisibility()")


def test_a_thousand_topics_are_found_by_a_part_of_their_name(
    served: StatusServer, browser: Browser, board: Board
) -> None:
    board.tell(state(NOW_MS + 4_000, topics=1_000, partitions=2))
    browser.until("return document.getElementById('topics-found').textContent === '50 of 1,000'")
    assert browser.run("return document.querySelectorAll('#topics tbody tr').length") == 50
    assert browser.text("#topics tbody button") == "topic-0999"
    field = browser.driver.find_element("id", "filter")
    field.send_keys("PIC-004")
    browser.until("return document.getElementById('topics-found').textContent === '10'")
    assert browser.texts("#topics tbody button")[-1] == "topic-0040"
    field.send_keys("x")
    browser.until("return document.querySelector('#topics tbody td').textContent === 'no topic name contains this'")


def test_what_the_operator_has_ordered_is_shown(served: StatusServer, browser: Browser, board: Board) -> None:
    assert not browser.run("return document.getElementById('control-section').checkVisibility()")
    control = LinkControl(
        paused=frozenset(("orders",)), paused_partitions=frozenset({TopicPartition("clicks", 3)}), bytes_per_s=2 << 20
    )
    board.tell(replace(state(NOW_MS + 4_000), control=control))
    browser.until("return document.getElementById('control-section').checkVisibility()")
    assert browser.texts("#control tbody td") == [
        *("throttle", "at most 2.0 MiB/s, set by the operator"),
        *("paused", "topic orders"),
        *("paused", "partition clicks-3"),
    ]
    assert browser.text("#phase") == "running, at most 2.0 MiB/s"
    assert browser.text("#held") == "5 paused by the operator"
    row = f"{ROWS}.find((r) => r.dataset.topic === 'orders').cells[1].textContent"
    assert browser.run(row, "#topics tbody tr") == "4, 4 paused"
    browser.run("[...document.querySelectorAll('button.topic')].find((b) => b.textContent === 'clicks').click()")
    browser.until("return document.querySelectorAll('#partitions tbody tr').length === 4")
    assert browser.texts("#partitions tbody td:last-child") == ["", "", "", "paused by an operator"]


def test_a_link_that_copies_nothing_any_more_is_called_so(served: StatusServer, browser: Browser, board: Board) -> None:
    for control, words, health in (
        (LinkControl(is_promotion_begun=True, is_fenced=True), "promoted", "promoted"),
        (LinkControl(is_promotion_begun=True), "promotion not finished", "blocked"),
        (LinkControl(is_handed_back=True), "handed back", "handed back"),
    ):
        board.tell(replace(state(NOW_MS + 4_000), phase=Phase.STOPPED, control=control, own_rate=1 << 20))
        browser.until("return document.getElementById('phase').textContent.includes(arguments[0])", words)
        assert browser.text("#phase") == f"stopped, {words}, at most 1.0 MiB/s"
        assert browser.text("#level") == health
        assert browser.texts("#control tbody td:first-child") == [words, "throttle"]
    assert (
        browser.text("#control tbody tr:last-child td:last-child")
        == "at most 1.0 MiB/s, set when the mirror was started"
    )


def test_age_of_a_sample_is_called_one(served: StatusServer, browser: Browser, board: Board) -> None:
    assert not browser.run("return document.getElementById('aged').checkVisibility()")
    later = state(NOW_MS + 4_000)
    unknown = {
        p: replace(s, oldest_ms=None) for p, s in later.partitions.items() if p.topic != "orders" and p.partition
    }
    board.tell(replace(later, partitions={**later.partitions, **unknown}))
    browser.until("return document.getElementById('aged').checkVisibility()")
    assert browser.text("#aged") == "age known of 7 of 28 that are behind"


def test_duties_tell_when_they_ended(served: StatusServer, browser: Browser, board: Board) -> None:
    hour_ago = int(time.time() * 1000) - 3_600_000
    duties = {
        "beat": DutyState(hour_ago, "", 1.0),
        "groups": DutyState(0, "", 60.0),
        "acls": DutyState(hour_ago, "refused"),
    }
    board.tell(replace(state(NOW_MS + 4_000), duties=duties))
    browser.until("return document.querySelector('#duties tbody td').textContent === 'acls'")
    rows = ("acls", "60 min ago", "refused"), ("beat", "60 min ago", "done"), ("groups", "not yet", "")
    assert browser.texts("#duties tbody td") == [text for row in rows for text in row]


def test_a_column_of_latencies_that_nobody_knows_is_not_shown(
    served: StatusServer, browser: Browser, board: Board
) -> None:
    assert browser.run("return document.getElementById('group-latency').checkVisibility()")
    board.tell(replace(state(NOW_MS + 4_000), groups=(GroupState("billing", "orders", 0, 5, note="behind"),)))
    browser.until("return document.querySelectorAll('#groups tbody tr').length === 1")
    assert browser.texts("#groups tbody td") == ["billing", "1", "behind"]
    assert not browser.run("return document.getElementById('group-latency').checkVisibility()")


def test_ten_thousand_partitions_are_shown_at_once(browser: Browser) -> None:
    board, big = Board(), state(NOW_MS, topics=100, partitions=100)
    for step in range(5, -1, -1):
        board.tell(replace(big, time_ms=NOW_MS - 2_000 * step))
    with StatusServer(board, "127.0.0.1:0") as served:
        began = time.monotonic()
        browser.driver.get(served.url)
        browser.until("return document.body.dataset.shown")
        assert time.monotonic() - began < (10 if os.environ.get("CI") else 4)  # 0.4 s on a machine that is free
        assert browser.text("#partition_count") == "10,000"
        assert browser.run("return document.querySelectorAll('#topics tbody tr').length") == 50
        assert browser.run("return document.querySelectorAll('*').length") < 3_000
        with urllib.request.urlopen(f"{served.url}api/state.json", timeout=10) as answer:
            assert len(answer.read()) < 200_000
        board.tell(state(NOW_MS + 2_000, topics=1, partitions=10_000))
        browser.until("return document.querySelectorAll('#topics tbody tr').length === 1")
        browser.run("document.querySelector('button.topic').click()")
        browser.until("return document.getElementById('partitions-shown').textContent.startsWith('200 of 10,000')")
        assert browser.run("return document.querySelectorAll('#partitions tbody tr').length") == 200
        browser.driver.get("about:blank")


def test_links_are_chosen_by_buttons(served: StatusServer, browser: Browser, board: Board) -> None:
    assert not browser.run("return document.getElementById('links').checkVisibility()")
    board.tell(replace(state(NOW_MS, link="B-A", busy=0.0), phase=Phase.RESTARTING, problem="lost"))
    browser.until("return document.querySelectorAll('#links button').length === 2")
    assert browser.texts("#links button") == ["● A-B (blocked)", "● B-A (waiting)"]
    browser.run("document.querySelectorAll('#links button')[1].click()")
    browser.until("return document.getElementById('clusters').textContent.match(/^B [^→]*→ A/)")
    assert browser.value("#lag_offsets") == 0


def contrast(first: list[float], second: list[float]) -> float:
    """WCAG 2.2's ratio of two colours."""

    def luminance(colour: list[float]) -> float:
        parts = [c / 255 for c in colour]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


COLOURS = """
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour.slice(0, 3);
  }
};
const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
return [...document.querySelectorAll('main *, header *, footer *')]
  .filter((e) => !(e instanceof SVGElement) && e.checkVisibility() && hasText(e))
  .map((e) => [`${e.tagName} ${e.textContent.slice(0, 20)}`, numbers(getComputedStyle(e).color).slice(0, 3), ground(e)]);
"""
BODY = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_enough_in_light_and_dark(served: StatusServer, browser: Browser, scheme: str) -> None:
    browser.emulate(scheme=scheme)
    colours = browser.run(COLOURS)
    assert len(colours) > 100
    assert (sum(browser.run(BODY)[:3]) < 3 * 64) == (scheme == "dark")
    faint = [(name, round(contrast(text, ground), 2)) for name, text, ground in colours if contrast(text, ground) < 4.5]
    assert faint == []
    if PICTURES:
        browser.screenshot(Path(PICTURES, f"test-status-{scheme}.png"))


def test_page_fits_a_phone(served: StatusServer, browser: Browser) -> None:
    browser.emulate(width=360, height=740)
    browser.until("return document.querySelector('#chart-lag').viewBox.baseVal.width < 360")
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return document.querySelector('#topics .less').checkVisibility()") is False
    if PICTURES:
        browser.screenshot(Path(PICTURES, "test-status-phone.png"))


def test_everything_is_reached_by_keyboard_and_focus_stays_where_it_is(served: StatusServer, browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    body = browser.driver.switch_to.active_element
    body.send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.textContent") == "To the topics"
    for _ in range(2):  # the filter, the first topic
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    before = browser.run("return [document.activeElement.textContent, document.body.dataset.shown]")
    assert before[0] == "sessions"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.until("return document.querySelector('button.topic[aria-pressed=true]')")
    assert browser.run("return document.activeElement.textContent") == "sessions"


def test_page_says_when_the_mirror_does_not_answer(board: Board, browser: Browser) -> None:
    with StatusServer(board, "127.0.0.1:0") as served:
        browser.driver.get(served.url)
        browser.until("return document.body.dataset.shown")
    browser.until("return document.getElementById('phase').textContent.startsWith('the mirror does not respond')")
    assert browser.text("#level") == "unknown"
    assert browser.value("#lag_offsets") == 11_200  # the last numbers stay
    with StatusServer(board, f"127.0.0.1:{served.port}"):
        browser.until("return document.getElementById('level').textContent === 'blocked'")
    browser.driver.get("about:blank")
