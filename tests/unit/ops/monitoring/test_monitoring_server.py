"""board.py, status.py and server.py: an hour of samples, the page's data, and who may request them."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import math
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kafka.structs import TopicPartition

from support.link_samples import HOSTILE, NOW_MS, hour, seen, state, troubled
from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.ledger import decode_row
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.monitoring import server
from tolerant_client.ops.monitoring.board import MOST_TRACES, Board, Point, Trace, thinned
from tolerant_client.ops.monitoring.server import MOST_CONNECTIONS, StatusServer, content_security_policy, liveness
from tolerant_client.ops.monitoring.status import MOST_ROWS, state_json
from tolerant_client.ops.service.link_state import DutyState, LinkState, Phase
from tolerant_client.records.record_batch import Record

# -- history ------------------------------------------------------------------


def trace(seconds: int, step_s: float = 1.0) -> Trace:
    """A trace of this many seconds, whose lag is its time in seconds."""
    made = Trace()
    for number in range(int(seconds / step_s)):
        at_s = number * step_s
        made.add(Point(at_s * 1000, at_s, 0.0, 10.0, math.nan, 1.0))
    return made


def test_last_five_minutes_are_kept_in_steps_of_two_seconds_and_the_hour_in_steps_of_thirty() -> None:
    points = trace(7_200).points()
    times = [point.time_ms for point in points]
    assert times == sorted(set(times))
    fine = [time for time in times if time >= times[-1] - 290_000]
    assert {after - before for before, after in zip(fine, fine[1:])} == {2_000}
    assert 3_500_000 < times[-1] - times[0] < 4_000_000
    assert len(points) <= 150 + 120


def test_a_peak_is_not_lost_by_thinning() -> None:
    made = Trace()
    for at_s in range(0, 3_600, 2):
        made.add(Point(at_s * 1000, 9_999.0 if at_s == 600 else 1.0, 0.0, 10.0, 0.0, 1.0))
    assert max(point.lag_offsets for point in made.points()) == 9_999
    few = made.points(40)
    assert len(few) <= 40 and max(point.lag_offsets for point in few) == 9_999


def test_what_is_not_known_is_left_out_of_means() -> None:
    one = thinned([Point(1, 1, math.nan, 10, math.nan, 3), Point(2, 5, math.nan, math.nan, math.nan, 1)])
    assert (one.time_ms, one.lag_offsets, one.offsets_per_s, one.latency_ms) == (2, 5, 10, 3)
    assert math.isnan(one.lag_seconds) and math.isnan(one.bytes_per_s)


def test_topics_that_are_gone_are_forgotten_and_no_more_are_kept_than_the_limit() -> None:
    board = Board()
    board.tell(state(topics=MOST_TRACES + 50, partitions=1))
    kept = [t for t in board.states()[0].topics if board.past("A-B", t)]
    assert len(kept) == MOST_TRACES
    board.tell(state(NOW_MS + 2_000, topics=1))
    assert board.past("A-B", "payments") == [] and len(board.past("A-B", "orders")) == 2


# -- the page's data ----------------------------------------------------------


@pytest.fixture
def board() -> Board:
    made = Board()
    hour(made, troubled(), step_ms=60_000)
    return made


def test_sums_are_those_of_the_sample(board: Board) -> None:
    link = state_json(board, NOW_MS)["link"]
    assert link["totals"]["lag_offsets"] == sum(4 * 100 * n for n in range(8))
    assert link["totals"]["lag_bytes"] == link["totals"]["lag_offsets"] * 250
    assert (link["totals"]["topics"], link["totals"]["partitions"], link["lost_offsets"]) == (8, 32, 40)
    assert (link["standing_count"], link["ledger_count"], link["restarts"], link["faults"]["lost"]) == (1, 1, 2, 12)
    assert [(row["topic"], row["health"]) for row in link["standing"]] == [("audit.log", "blocked")]
    assert link["totals"]["latency_ms"] == {"mean": 40.0, "least": 5, "greatest": 187, "last": 40}
    assert [g["group"] for g in link["groups"]] == ["billing", "search"]


def test_topics_most_behind_come_first_and_a_filter_finds_the_others(board: Board) -> None:
    assert [t["topic"] for t in state_json(board, NOW_MS, most=2)["link"]["topics"]] == ["sessions", "prices"]
    found = state_json(board, NOW_MS, most=2, matching="ORD")["link"]
    assert [t["topic"] for t in found["topics"]] == ["orders"] and found["topics_found"] == 1


def test_focus_tells_one_topics_hour_and_partitions(board: Board) -> None:
    link = state_json(board, NOW_MS, focus="audit.log")["link"]
    assert list(link["topics_past"]) == ["audit.log"]
    assert [p["partition"] for p in link["partitions"]] == [0, 1, 2, 3]
    assert link["partitions"][2]["reason"] == f"blocked: audit.log-2: {HOSTILE}"
    assert state_json(board, NOW_MS, focus="nobody")["link"]["focus"] == ""


def test_answer_stays_small_whatever_a_link_has() -> None:
    big = Board()
    row = troubled().ledger[0]
    rows = tuple(row._replace(from_offset=n, until_offset=n + 1) for n in range(5_000))
    big.tell(replace(state(topics=1_000, partitions=2), ledger=rows))
    found = state_json(big, NOW_MS)
    assert len(found["link"]["topics"]) == 50 and found["link"]["topics_found"] == 1_000
    assert (len(found["link"]["ledger"]), found["link"]["ledger_count"]) == (MOST_ROWS, 5_000)
    assert found["link"]["ledger"][0]["from_offset"] == 4_999  # the newest
    assert len(json.dumps(found, allow_nan=False)) < 300_000


def test_of_ten_thousand_partitions_the_answer_is_small_and_quick() -> None:
    big = Board()
    big.tell(state(topics=100, partitions=100))
    began = time.process_time()
    found = state_json(big, NOW_MS, focus="topic-0099")
    seconds = time.process_time() - began
    assert len(json.dumps(found)) < 200_000
    assert (len(found["link"]["topics"]), len(found["link"]["partitions"])) == (50, 100)
    assert found["link"]["totals"]["partitions"] == 10_000
    assert seconds < 2


def test_of_a_wide_topic_the_partitions_that_wait_or_are_behind_most_are_told() -> None:
    board = Board()
    wide = state(topics=1, partitions=1_000)
    lagging, waiting = TopicPartition("orders", 700), TopicPartition("orders", 900)
    partitions = {**wide.partitions, lagging: seen(lagging, 1_000_000, 5)}
    board.tell(replace(wide, partitions=partitions, report=replace(wide.report, blocked={waiting: "too large"})))
    link = state_json(board, NOW_MS, focus="orders")["link"]
    shown = [p["partition"] for p in link["partitions"]]
    assert (len(shown), link["focus_partitions"]) == (MOST_ROWS, 1_000)
    assert shown == sorted(shown) and {700, 900} <= set(shown)


def test_control_is_told_and_who_has_set_the_limit() -> None:
    board = Board()
    paused = LinkControl(
        frozenset(("orders", "clicks-3")), 1_000, paused_partitions=frozenset({TopicPartition("clicks", 3)})
    )
    board.tell(replace(state(), control=paused, own_rate=500))
    link = state_json(board, NOW_MS, focus="clicks")["link"]
    assert link["control"] == {
        "is_promotion_begun": False, "is_promoted": False, "is_fenced": False, "is_handed_back": False,
        "throttle_bytes": 1_000, "throttle_from": "operator",
        "paused": ["topic clicks-3", "topic orders", "partition clicks-3"], "paused_count": 3,
    }  # fmt: skip
    assert link["totals"]["paused"] == 5 and [p["is_paused"] for p in link["partitions"]] == [False] * 3 + [True]


def test_what_is_old_is_said_to_be_old(board: Board) -> None:
    reasons = state_json(board, NOW_MS + 600_000)["link"]["reasons"]
    assert any("all numbers are that old" in reason["text"] for reason in reasons)


def test_what_was_never_seen_is_null_and_not_zero() -> None:
    board = Board()
    board.tell(LinkState("A-B", phase=Phase.RESTARTING, problem="away", duties={"beat": DutyState(interval_s=5)}))
    link = state_json(board, NOW_MS)["link"]
    unseen = ("ledger", "ledger_count", "lost_offsets", "groups", "looked_ms")
    assert {name: link[name] for name in unseen} == dict.fromkeys(unseen)
    assert (link["health"], [duty["duty"] for duty in link["duties"]]) == ("waiting", ["beat"])


def test_nothing_is_no_error() -> None:
    assert state_json(Board(), NOW_MS)["link"] is None


def test_health_is_for_whoever_restarts_the_process() -> None:
    board = Board()
    assert liveness(board, NOW_MS) == (200, {"status": "unknown", "dead": [], "links": {}})  # nothing was checked yet
    board.tell(replace(state(), unreachable={"source": "away"}))
    assert liveness(board, NOW_MS)[0] == 200  # a new process would not reach it either
    assert liveness(board, NOW_MS + 121_000)[0] == 503
    board.tell(replace(state(), blind="no token"))
    assert liveness(board, NOW_MS + 121_000)[0] == 200  # nor would it look better
    board.tell(state(link="B-A"))
    board.tell(replace(state(NOW_MS + 1_000), phase=Phase.FAILED))
    status, report = liveness(board, NOW_MS + 1_000)
    assert (status, report["dead"]) == (503, ["A-B"])


# -- who may request it -------------------------------------------------------


@pytest.fixture
def served(board: Board) -> Iterator[StatusServer]:
    with StatusServer(board, "127.0.0.1:0") as made:
        yield made


def ask(served: StatusServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_page_loads_nothing_and_no_other_page_may_hold_it(served: StatusServer) -> None:
    status, headers, page = ask(served, "/")
    assert status == 200
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert (
        policy["default-src"] == "'none'"
        and policy["connect-src"] == "'self'"
        and policy["frame-ancestors"] == "'none'"
    )
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert policy["script-src"].count("sha256-") == 1 == page.count(b"<script>")
    assert policy["style-src"].count("sha256-") == 1 == page.count(b"<style>")
    for loading in (b"http://", b"https://", b"@import", b"url(", b" src=", b"innerHTML", b"style=", b"eval("):
        assert loading not in page.replace(b"http://www.w3.org/2000/svg", b""), loading
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"


def test_policy_changes_with_the_script() -> None:
    page = "<style>a</style><script>1</script>"
    assert content_security_policy(page) != content_security_policy(page.replace("1", "2"))


def test_state_is_served_as_json_and_packed_where_that_is_asked_for(served: StatusServer) -> None:
    status, headers, body = ask(served, "/api/state.json?topics=1&filter=order&link=A-B")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert [t["topic"] for t in json.loads(body)["link"]["topics"]] == ["orders"]
    _, headers, packed = ask(served, "/api/state.json?topics=1&filter=order", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and json.loads(gzip.decompress(packed))["link"]["link"] == "A-B"


@pytest.mark.parametrize(
    "query", ["topics=-1", "topics=%C2%B2", "topics=" + "9" * 5_000, "topic=%00", "link=nobody", "filter=%ff", "&&=&"]
)
def test_any_question_gets_an_answer(served: StatusServer, query: str) -> None:
    assert ask(served, f"/api/state.json?{query}")[0] == 200


def test_metrics_and_health_are_served(served: StatusServer) -> None:
    status, headers, body = ask(served, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    assert b'tolerant_mirror_lag_offsets{link="A-B",topic="clicks"} 800.0' in body
    assert b"process_resident_memory_bytes" in body
    openmetrics = ask(served, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[1]["Content-Type"]
    assert openmetrics.startswith("application/openmetrics-text")
    assert json.loads(ask(served, "/healthz")[2])["links"]["A-B"]["health"] == "blocked"


@pytest.mark.parametrize("end", [2**63 - 1, 2**63, 10**400, 10**4299])
def test_a_ledger_record_with_any_number_blinds_nobody(end: int) -> None:
    fields = {"version": 1, "time_ms": 1, "link": "A-B", "topic": "orders", "reason": "retention", "detail": ""}
    value = json.dumps({**fields, "partition": 0, "from_offset": 0, "until_offset": end}).encode()
    rows = tuple(decode_row(Record(offset, NOW_MS, None, value)) for offset in range(3))
    known = Board()
    known.tell(replace(state(NOW_MS), ledger=rows))
    with StatusServer(known, "127.0.0.1:0") as served:
        for path in ("/metrics", "/api/state.json"):
            assert ask(served, path)[0] == 200, path


def test_nothing_else_is_served_and_nothing_can_be_sent(served: StatusServer) -> None:
    assert ask(served, "/etc/passwd")[0] == ask(served, "/../server.py")[0] == 404
    assert ask(served, "/", "POST")[0] == ask(served, "/metrics", "DELETE")[0] == 501
    status, headers, body = ask(served, "/", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 10_000


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9464", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("", 403),
    ],
)
def test_local_server_answers_only_to_local_names(served: StatusServer, host: str, status: int) -> None:
    assert ask(served, "/api/state.json", Host=host)[0] == status


def test_server_for_others_answers_to_any_name(board: Board) -> None:
    with StatusServer(board, "0.0.0.0:0") as served:
        assert ask(served, "/healthz", Host="mirror.example:9464")[0] != 403


def test_caller_that_goes_away_is_not_told_of(served: StatusServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
            gone.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n" * 50)
    assert ask(served, "/healthz")[0] in (200, 503)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "localhost", "localhost:", "localhost:x", "localhost:\u00b2", "localhost:65536"]
)
def test_wrong_address_is_named(address: str) -> None:
    with pytest.raises(OptionError, match="--metrics needs HOST:PORT"):
        StatusServer(Board(), address)


def test_port_that_is_taken_is_named(served: StatusServer) -> None:
    with pytest.raises(
        OptionError, match=f"--metrics cannot listen at 127.0.0.1:{served.port} .*; choose another address or port"
    ):
        StatusServer(Board(), f"127.0.0.1:{served.port}")


def test_server_closes_twice_and_frees_its_port(board: Board) -> None:
    first = StatusServer(board, "127.0.0.1:0")
    first.close()
    first.close()
    StatusServer(board, f"127.0.0.1:{first.port}").close()


def test_ipv6_is_spoken_where_the_machine_has_it(board: Board) -> None:
    try:
        served = StatusServer(board, "[::1]:0")
    except OptionError:
        pytest.skip("this machine has no IPv6")
    assert served.url.startswith("http://[::1]:")
    served.close()


# -- clients that take more than their share ----------------------------------


def idle(served: StatusServer, count: int) -> list[socket.socket]:
    """Connections that begin a request and never finish it."""
    found = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
        connection.sendall(b"GET / HTTP/1.0\r\n")
        found.append(connection)
    return found


def test_idle_connections_neither_keep_others_out_nor_take_all_descriptors(served: StatusServer) -> None:
    threads = threading.active_count()
    connections = idle(served, 3 * MOST_CONNECTIONS)
    try:
        assert ask(served, "/")[0] == 200
        deadline = time.monotonic() + 10
        while threading.active_count() > threads + MOST_CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threading.active_count() <= threads + MOST_CONNECTIONS
        assert connections[0].recv(1) == b"", "the oldest had to go"
    finally:
        for connection in connections:
            connection.close()


def test_a_request_that_comes_in_drops_ends_in_time(served: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    (connection,) = idle(served, 1)
    with connection, pytest.raises((ConnectionError, TimeoutError)):
        for _ in range(100):
            time.sleep(0.1)
            connection.sendall(b"X-Drop: 1\r\n")


def test_a_server_without_descriptors_waits_instead_of_asking_again_and_again(
    served: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def refused(self: object) -> object:
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socketserver.TCPServer, "get_request", refused)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        time.sleep(1.0)
        monkeypatch.undo()
        assert 1 <= len(asked) <= 10
        assert b"200 OK" in connection.recv(100), "it is answered once there are descriptors again"


@pytest.mark.parametrize(
    "path, accept", [("http://[", "*/*"), ("/metrics", "application/openmetrics-text; version=x.y")]
)
def test_what_is_no_request_is_answered_without_a_traceback(
    served: StatusServer, path: str, accept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
        assert connection.recv(100).split(b" ")[1] == b"400"
    assert capsys.readouterr().err == ""
