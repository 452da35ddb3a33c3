"""The fault matrix: every answer fault, on every API, at every depth, in every phase of a connection.

One test is one fault in one phase, over all APIs and depths; a cell that fails is named, and
`PYTHONPATH=tests python -m support.matrix "<name>"` replays it event by event.
The invariants are in support/matrix.py, the faults and their accounts in support/answer_faults.py.

Not told apart, because the bytes do not: two answers of one API that name nothing of their
request and come in each other's place ("answers crossed" runs where a request can tell; where the
order of ids tells, it is "ids exchanged"), and a bit flipped in a value (answers carry no checksum;
"flipped bit" hits a count or a length).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.answer_faults import DEEP, FAULTS, Burst, Fault, Piece, fault
from support.matrix import DEPTHS, PHASES, Bench, Simulation, Violated, cell_of, cells, run_cell, simulation
from support.samples import encoded, filled, known_apis, response_class, sample, samples
from tolerant_client.stock.connection import TolerantConnection
from tolerant_client.tracker.inflight import InFlightRequests
from tolerant_client.tracker.rules import apis
from tolerant_client.tracker.rules.requests import adapt

SAID = 10  # failing cells that a message lists


@pytest.fixture
def shared() -> Iterator[Simulation]:
    with simulation() as shared:
        yield shared


# Some faults take two requests in flight, which a connection's own first ones never are.
POSSIBLE = [(one, phase) for phase in PHASES for one in FAULTS if any(True for _ in cells(one, phase))]


@pytest.mark.parametrize(("fault_", "phase"), POSSIBLE, ids=str)
def test_every_invariant_holds_in_every_cell(fault_: Fault, phase: str, shared: Simulation) -> None:
    run, violated = 0, []
    for cell in cells(fault_, phase):
        try:
            run_cell(shared, cell)
        except Violated as violation:
            violated.append(str(violation))
        run += 1
    assert run > 0
    assert shared.listening.records > 0
    assert not violated, f"{len(violated)} of {run} cells:\n" + "\n".join(violated[:SAID])


def test_matrix_is_as_large_as_it_says() -> None:
    sizes = {phase: sum(1 for one in FAULTS for _ in cells(one, phase)) for phase in PHASES}
    assert f"{len(FAULTS)} response faults" in Path(__file__).parents[1].joinpath("README.md").read_text()
    assert sizes["steady"] >= 8_000
    assert min(sizes.values()) >= 30
    assert {cell.depth for one in FAULTS for cell in cells(one, "steady")} == set(DEPTHS)
    deep = {cell.sample.name for one in FAULTS for cell in cells(one, "steady") if cell.depth == DEEP}
    assert deep == {item.name for item in samples() if not item.name.startswith("Sasl")}


def test_every_fault_meets_every_api_unless_no_client_could_see_it() -> None:
    everything = {item.name for item in samples() if not item.name.startswith("Sasl")}
    for one in FAULTS:
        missing = everything - {cell.sample.name for cell in cells(one, "steady")}
        if one.name in ("answers crossed", "speaks of something else"):
            assert len(missing) < len(everything) / 2
        else:
            assert len(missing) <= 2, f"{one}: {missing}"


def test_every_api_of_the_table_and_every_row_has_a_sample() -> None:
    assert set(apis.APIS) <= known_apis()
    assert set(apis.APIS) <= {item.api_key for item in samples()}
    rows = {adapt(item.request(0)).row for item in samples()}
    missing = [(api.name, row.when) for api in apis.APIS.values() for row in api.rows if row not in rows]
    assert missing == []


def test_every_api_of_kafka_python_is_in_the_table() -> None:
    assert known_apis() - set(apis.APIS) == set()


def test_samples_tell_requests_and_answers_apart() -> None:
    for item in samples():
        if not item.name.startswith("Sasl"):
            assert item.body(3) != item.body(4), item.name
            assert item.answered(3) != item.answered(4), item.name


def test_broker_that_throttles_is_not_probed_before_it_reads_again(shared: Simulation) -> None:
    """KIP-219: it answers, and then reads nothing from us for a while."""
    pause = 2.0
    item = sample("ListOffsets")
    throttled = filled(response_class(item.api_key), item.version, 0, {"throttle_time_ms": round(pause * 1000)})

    def spoil(burst: Burst) -> list[Piece]:
        first, second = burst.frames
        body = encoded(throttled)
        return [Piece(struct.pack(">i", 4 + len(body)) + first[4:8] + body), Piece(second, pause)]

    throttle = Fault("throttle", spoil, lambda cell: cell.fine(), recovers=False)
    bench = Bench(shared, cell_of(throttle, item, 2, "steady"), connection_class=TolerantConnection).connected()
    bench.burst()
    bench.broker.answers[0].append(encoded(throttled))
    bench.run()
    assert bench.connection.broker_version >= (2, 0)
    bench.check(throttle.account(bench.cell))


def test_broken_tracker_is_found_by_the_matrix(monkeypatch: pytest.MonkeyPatch, shared: Simulation) -> None:
    """A check that cannot fail proves nothing: a stream that is not put on trial delivers what it should not."""
    monkeypatch.setattr(InFlightRequests, "_put_on_trial", lambda self, now, grace, **_: None)
    with pytest.raises(Violated):
        for cell in cells(fault("drop"), "steady", depths=(2,)):
            run_cell(shared, cell)


def test_stall_that_stock_would_not_have_is_found_by_the_matrix(
    monkeypatch: pytest.MonkeyPatch, shared: Simulation
) -> None:
    """Orphans were dropped one by one once, until the request timeout."""
    monkeypatch.setattr(InFlightRequests, "_suspect", lambda self, orphan, now: [orphan])
    with pytest.raises(Violated, match="invariant (9|10)"):
        for cell in cells(fault("ids +3 for good"), "steady", depths=(1,)):
            run_cell(shared, cell)
