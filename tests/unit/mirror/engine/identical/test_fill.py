"""How gaps are filled when the target responds as a real broker seldom does: refusals, stale log ends, endless fencing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.protocol.producer import WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from tolerant_client.cluster.soon import SoonTurns
from tolerant_client.errors import LinkPromotedError, OptionError, OutcomeUnknownError, PartitionRefusedError
from tolerant_client.mirror.batches.gaps import Gap, marker_producer
from tolerant_client.mirror.engine.identical.fill import _LANES, MarkerFiller, TransactionFiller

P = TopicPartition("orders", 0)

_T = TypeVar("_T")


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Drives a coroutine that waits for nothing real."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise AssertionError("it waits")


class FakeTarget:
    """A target with scripted responses; time passes only during sleeps."""

    def __init__(self, log_end: int = 0) -> None:
        self.log_end = log_end
        self.now = 0.0
        self.sent: list[Any] = []
        self.log_ends: list[int] = []  # returned before the real one
        self.unreplicated = 0  # offsets at the end of the leader's log
        self._told = log_end
        self.responses: dict[str, Callable[[Any], Any]] = {
            "FindCoordinator": lambda _: SimpleNamespace(error_code=0, node_id=1)
        }
        self.markers_version = 1
        self.updates = 0
        self.looks = 0
        self.is_promoted = False
        self.net = SimpleNamespace(sleep=self._sleep)
        self.manager = SimpleNamespace(
            cluster=SimpleNamespace(request_update=self._update),
        )

    def clock(self) -> float:
        return self.now

    def _update(self) -> None:
        self.updates += 1

    async def _sleep(self, delay: float) -> None:
        self.now += delay

    def highest_version(self, request: Any) -> int:
        return self.markers_version if request is WriteTxnMarkersRequest else -1

    async def connect(self) -> None:
        pass

    def lane(self, purpose: str, node_id: int) -> str:
        return f"{purpose}-{node_id}"

    def wire_topic(self, topic: str) -> str:
        return topic

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def list_offsets(self, asked: Any) -> dict[TopicPartition, int]:
        self._told = self.log_ends.pop(0) if self.log_ends else self.log_end - self.unreplicated
        return dict.fromkeys(asked, self._told)

    async def by_leader(self, partitions: Any) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def offsets_at(
        self, node_id: int, partitions: Any, asked: Any, isolation: int, *, replica_id: int
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._told + self.unreplicated)

    async def insist(self, what: str, attempt: Any, patience_ms: int | None = None) -> Any:
        return await attempt()

    async def send(self, request: Any, node_id: int = -1) -> Any:
        self.sent.append(request)
        return self.responses[request.name.removesuffix("Request")](request)

    async def may_write(self, _: TopicPartition) -> None:
        self.looks += 1
        if self.is_promoted:
            raise LinkPromotedError("promoted")

    def append(self, count: int, response: Any) -> Any:
        self.log_end += count
        return response


def marked(request: Any, code: int = 0, *, partition: int = P.partition) -> Any:
    """What a broker responds: a code for each producer id."""
    parts = [SimpleNamespace(partition_index=partition, error_code=code)]
    topics = [SimpleNamespace(name=P.topic, partitions=parts)]
    producers = {marker.producer_id for marker in request.markers}
    return SimpleNamespace(markers=[SimpleNamespace(producer_id=each, topics=topics) for each in producers])


def marking(target: FakeTarget) -> MarkerFiller:
    return MarkerFiller(target, target.may_write, clock=target.clock)  # type: ignore[arg-type]


def transacting(target: FakeTarget) -> TransactionFiller:
    """A coordinator that accepts everything; a marker for every transaction that is ended."""
    state = SimpleNamespace(is_open=False)

    def add(request: Any) -> Any:
        state.is_open = True
        part = SimpleNamespace(partition_error_code=0)
        return SimpleNamespace(
            results_by_topic_v3_and_below=[SimpleNamespace(name=P.topic, results_by_partition=[part])]
        )

    def end(request: Any) -> Any:
        target.log_end += state.is_open
        state.is_open = False
        return SimpleNamespace(error_code=0)

    target.responses["InitProducerId"] = lambda _: SimpleNamespace(error_code=0, producer_id=7, producer_epoch=3)
    target.responses["AddPartitionsToTxn"] = add
    target.responses["EndTxn"] = end
    return TransactionFiller(target, "link", target.may_write, clock=target.clock)  # type: ignore[arg-type]


def names(target: FakeTarget) -> list[str]:
    return [request.name.removesuffix("Request") for request in target.sent]


def test_a_producer_that_was_not_fenced_goes_on_without_taking_over_again() -> None:
    target = FakeTarget()
    filler = transacting(target)
    assert [run(filler.fill(P, Gap(end, end + 1))) for end in range(3)] == [1, 2, 3]
    one = ["AddPartitionsToTxn", "EndTxn", "EndTxn"]
    assert names(target) == ["FindCoordinator", "InitProducerId", *one, *one, *one]


def test_a_transaction_with_records_is_not_opened_while_a_quota_would_hold_them_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = FakeTarget()
    quota = Future()

    async def sendable(lane: str) -> None:
        assert lane == "produce-1"
        await quota

    monkeypatch.setattr(target, "sendable", sendable, raising=False)
    filling = transacting(target).fill(P, Gap(0, 10_000))
    assert filling.send(None) is not None, "it waits"
    assert names(target) == ["FindCoordinator", "InitProducerId"]
    filling.close()
    assert run(transacting(target).fill(P, Gap(0, 1))) == 1, "an empty one has no records"


def test_a_log_that_is_not_what_it_was_taken_for_is_left_alone() -> None:
    target = FakeTarget(log_end=12)
    fill = transacting(target).fill
    assert run(fill(P, Gap(10, 12))) == 12
    assert run(fill(P, Gap(13, 15))) == 12
    assert target.sent == []


@pytest.mark.parametrize("make", [lambda target: transacting(target), lambda target: marking(target)])
def test_a_second_fill_of_a_partition_waits_for_the_first_and_looks_again(make: Callable[[FakeTarget], Any]) -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
    filler = make(target)
    run(filler.fill(P, Gap(0, 1)))  # a transactional producer reads the log end only before its first gap
    filler._locks._taken[P] = busy = Future()
    second = filler.fill(P, Gap(1, 2))
    assert second.send(None) is not None, "it waits"
    target.log_end, sent = 2, len(target.sent)  # the first has filled it
    filler._locks._taken.pop(P)
    busy.success(None)
    assert run(second) == 2 and len(target.sent) == sent


def test_what_was_filled_meanwhile_is_not_filled_again() -> None:
    target = FakeTarget()
    target.log_ends = [0, 2]  # before and after it takes over
    target.log_end = 2
    assert run(transacting(target).fill(P, Gap(0, 3))) == 3
    assert names(target).count("AddPartitionsToTxn") == 1


def test_an_unanswered_request_is_not_repeated_and_its_producer_is_not_used_again() -> None:
    target = FakeTarget()
    filler = transacting(target)
    yes = target.responses["AddPartitionsToTxn"]

    def lost(_: Any) -> Any:
        target.responses["AddPartitionsToTxn"] = yes
        raise Errors.KafkaConnectionError("reset")

    target.responses["AddPartitionsToTxn"] = lost
    with pytest.raises(Errors.KafkaConnectionError):
        run(filler.fill(P, Gap(0, 1)))
    assert names(target).count("AddPartitionsToTxn") == 1
    assert run(filler.fill(P, Gap(0, 1))) == 1
    assert names(target).count("InitProducerId") == 2


def test_a_coordinator_that_asks_for_patience_gets_it() -> None:
    target = FakeTarget()
    filler = transacting(target)
    yes, refusals = target.responses["EndTxn"], [51, 51, 14, 15]
    target.responses["EndTxn"] = lambda r: SimpleNamespace(error_code=refusals.pop()) if refusals else yes(r)
    assert run(filler.fill(P, Gap(0, 1))) == 1
    assert names(target).count("InitProducerId") == 1 and target.now > 0


def test_patience_ends() -> None:
    target = FakeTarget()
    filler = transacting(target)
    target.responses["EndTxn"] = lambda _: SimpleNamespace(error_code=51)
    with pytest.raises(Errors.ConcurrentTransactionsError):
        run(filler.fill(P, Gap(0, 1)))
    assert 30 < target.now < 40


def test_who_is_fenced_for_ever_says_so_with_a_retriable_error() -> None:
    target = FakeTarget()
    filler = transacting(target)
    target.responses["EndTxn"] = lambda _: SimpleNamespace(error_code=90)
    with pytest.raises(Errors.ConcurrentTransactionsError, match="other writers of link link fill orders-0") as caught:
        run(filler.fill(P, Gap(0, 1)))
    assert caught.value.retriable
    assert target.now > 1  # it has waited for the others each time


@pytest.mark.parametrize("gap", [Gap(0, 1), Gap(0, 5)])
def test_a_stale_log_end_is_not_filled_from(gap: Gap) -> None:
    target = FakeTarget()
    filler = transacting(target)
    target.log_ends = [0, 0, 0]
    with pytest.raises(Errors.OffsetNotAvailableError, match=r"orders-0 ends at 0, but it was written up to"):
        run(filler.fill(P, gap))
    assert target.updates == 1


def test_a_stale_log_end_is_not_marked_from() -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
    target.log_ends = [0]
    with pytest.raises(Errors.OffsetNotAvailableError):
        run(marking(target).fill(P, Gap(0, 3)))


def test_markers_that_are_not_replicated_are_waited_for_and_not_sent_again() -> None:
    target = FakeTarget()

    def append(request: Any) -> Any:
        target.unreplicated = len(request.markers)
        return target.append(len(request.markers), marked(request))

    target.responses["WriteTxnMarkers"] = append
    filler = marking(target)
    for _ in range(2):
        with pytest.raises(
            Errors.OffsetNotAvailableError, match="orders-0: replication on the target is behind: .* at 3, .* is 0"
        ) as caught:
            run(filler.fill(P, Gap(0, 3)) if not target.sent else filler._settled(P))
        assert caught.value.retriable and len(target.sent) == 1
    assert target.now > 8
    target.unreplicated = 0
    assert run(filler._settled(P)) == 3


def test_markers_carry_the_offsets_of_the_gap() -> None:
    target = FakeTarget(log_end=32_766)
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
    assert run(marking(target).fill(P, Gap(32_766, 40_000))) == 40_000
    assert all(isinstance(request, WriteTxnMarkersRequest) for request in target.sent) and len(target.sent) > 1
    markers = [marker for request in target.sent for marker in request.markers]
    assert not any(marker.transaction_result for marker in markers)
    assert {(t.name, *t.partition_indexes) for marker in markers for t in marker.topics} == {P}
    assert [(m.producer_id, m.producer_epoch) for m in markers] == [marker_producer(n) for n in range(32_766, 40_000)]


def test_a_hole_in_a_request_of_markers_costs_one_more_and_not_one_for_each_offset() -> None:
    """A leader that was fenced for a moment has refused the first ones; then a broker takes no lower epoch of that producer."""
    target, epochs = FakeTarget(log_end=1_400), {marker_producer(0)[0]: 1_999}

    def append(request: Any) -> Any:
        taken = 0
        for marker in request.markers:
            if marker.producer_epoch >= epochs.get(marker.producer_id, -1):
                epochs[marker.producer_id] = marker.producer_epoch
                taken += 1
        return target.append(taken, marked(request))  # the code of the last one

    target.responses["WriteTxnMarkers"] = append
    filler = marking(target)
    with pytest.raises(
        Errors.OffsetNotAvailableError, match="ends at 2401"
    ):  # the leader may have been replaced: it is read again
        run(filler.fill(P, Gap(1_400, 3_000)))
    assert run(filler.fill(P, Gap(2_401, 3_000))) == 3_000
    assert len(target.sent) == 2
    assert run(filler.fill(P, Gap(3_000, 3_010))) == 3_010
    later = [(m.producer_id, m.producer_epoch) for m in target.sent[-1].markers]
    assert later == [marker_producer(n) for n in range(3_000, 3_010)], (
        "what fills it by another process is refused late"
    )


def test_no_request_lies_unread_behind_the_markers_of_another_partition() -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
    filler = marking(target)
    for waited_s, count in ((0.5, 3), (1.5, 2)):
        target.log_end, target.looks = 0, 0
        target.sent.clear()
        other = filler._turns.setdefault((1, "markers-0"), SoonTurns(has_sequences=False)).turn()
        run(other.__aenter__())
        filling = filler.fill(P, Gap(0, 3))
        assert filling.send(None) is not None and not target.sent, "it waits"
        target.now += waited_s
        target.log_end = 3 - count  # as the log of one that took over meanwhile
        run(other.__aexit__(None, None, None))
        with pytest.raises(StopIteration) as done:
            filling.send(None)
        assert (done.value.value, target.looks) == (3, 1 if waited_s < 1 else 2)
        assert [len(request.markers) for request in target.sent] == [count]


def test_who_waited_too_long_for_a_turn_gives_it_up_reads_again_and_has_the_next_one() -> None:
    target, sent = FakeTarget(), []

    def respond(request: Any) -> Any:
        (partition,) = request.markers[0].topics[0].partition_indexes
        sent.append(partition)
        return target.append(len(request.markers), marked(request, partition=partition))

    target.responses["WriteTxnMarkers"] = respond
    filler = marking(target)
    other = filler._turns.setdefault((1, "markers-0"), SoonTurns(has_sequences=False)).turn()
    run(other.__aenter__())
    first, second = (filler.fill(TopicPartition("orders", n), Gap(0, 3)) for n in (0, _LANES))
    assert first.send(None) is not None and second.send(None) is not None
    target.now += 1.5
    run(other.__aexit__(None, None, None))
    for filling in (first, second):
        filling.send(None)
    assert target.looks == 4 and not sent, "each has read again, and has not sent in that turn"
    for filling in (first, second):
        with pytest.raises(StopIteration):
            filling.send(None)
    assert sent == [0, _LANES]


def test_a_check_that_takes_long_itself_keeps_no_marker_from_being_sent() -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))

    async def slowly(partition: TopicPartition) -> None:
        target.now += 1.5
        await target.may_write(partition)

    assert run(MarkerFiller(target, slowly, clock=target.clock).fill(P, Gap(0, 3))) == 3  # type: ignore[arg-type]
    assert (target.looks, len(target.sent)) == (1, 1)


def test_markers_are_not_sent_once_the_partition_is_lost_while_they_waited() -> None:
    def refuse(_: TopicPartition) -> None:
        raise Errors.NotLeaderForPartitionError("not claimed")

    target = FakeTarget()
    with pytest.raises(Errors.NotLeaderForPartitionError):
        run(MarkerFiller(target, target.may_write, refuse, clock=target.clock).fill(P, Gap(0, 3)))  # type: ignore[arg-type]
    assert not target.sent


def test_markers_that_are_there_already_are_passed_over() -> None:
    target = FakeTarget()

    def respond(request: Any) -> Any:
        target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
        return target.append(2, marked(request, 47))

    target.responses["WriteTxnMarkers"] = respond
    assert run(marking(target).fill(P, Gap(0, 5))) == 5
    assert [len(request.markers) for request in target.sent] == [5, 3]


def test_markers_without_permission_name_the_remedy() -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: marked(request, 31)
    with pytest.raises(
        PartitionRefusedError, match="ClusterAction .*--gap-fill transactions .*tolerant.gap.fill = transactions"
    ):
        run(marking(target).fill(P, Gap(0, 1)))


@pytest.mark.parametrize("is_part", [False, True])
def test_a_response_that_speaks_of_other_markers_tells_nothing_of_ours(is_part: bool) -> None:
    def respond(request: Any) -> Any:
        told = marked(request, partition=P.partition if is_part else 1)
        del told.markers[1:]
        return told

    target = FakeTarget(log_end=32_766)
    target.responses["WriteTxnMarkers"] = respond
    filler = marking(target)
    with pytest.raises(OutcomeUnknownError, match="orders-0 names others"):
        run(filler.fill(P, Gap(32_766, 32_770)))  # of two producer ids
    assert filler._unanswered.keys() == {P}, "the next one waits until they have had time to arrive"


def test_markers_of_a_broker_that_leads_no_more_are_retried_elsewhere() -> None:
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: marked(request, 6)
    with pytest.raises(Errors.NotLeaderForPartitionError):
        run(marking(target).fill(P, Gap(0, 1)))
    assert target.updates == 1


def test_markers_need_a_broker_that_takes_them() -> None:
    target = FakeTarget()
    target.markers_version = 0
    with pytest.raises(OptionError, match="--gap-fill transactions .*tolerant.gap.fill = transactions"):
        run(marking(target).fill(P, Gap(0, 1)))


def test_an_unanswered_marker_is_waited_for() -> None:
    # 1. A request is lost on its way.  2. The next attempt waits.  3. The request arrives.  4. The log end shows it.
    target = FakeTarget()
    filler = marking(target)

    def lost(_: Any) -> Any:
        raise Errors.KafkaConnectionError("reset")

    target.responses["WriteTxnMarkers"] = lost
    with pytest.raises(Errors.KafkaConnectionError):
        run(filler.fill(P, Gap(0, 2)))
    slept = target.net.sleep

    async def arrive(delay: float) -> None:
        target.log_end = 2
        await slept(delay)

    target.net.sleep = arrive
    assert run(filler.fill(P, Gap(0, 2))) == 2
    assert len(target.sent) == 1 and target.now > 4


def test_a_transactional_id_without_permission_names_the_remedy() -> None:
    target = FakeTarget()
    filler = transacting(target)
    target.responses["InitProducerId"] = lambda _: SimpleNamespace(error_code=53)
    with pytest.raises(
        PartitionRefusedError, match="tolerant-mirror-link-gap-orders-0; grant it Write .*tolerant.gap.fill = records"
    ):
        run(filler.fill(P, Gap(0, 1)))


def test_a_timeout_that_the_brokers_do_not_allow_names_the_remedy() -> None:
    target = FakeTarget()
    filler = transacting(target)
    target.responses["InitProducerId"] = lambda _: SimpleNamespace(error_code=50)
    with pytest.raises(OptionError, match="transaction.max.timeout.ms; .*tolerant.gap.fill = records"):
        run(filler.fill(P, Gap(0, 1)))


def test_who_was_fenced_by_a_promotion_takes_over_and_writes_nothing() -> None:
    # 1. A filler adds its partition.  2. The link is promoted and its transactional.id fenced.  3. It ends the transaction.
    target = FakeTarget()
    filler = transacting(target)

    def fenced(_: Any) -> Any:
        target.is_promoted = True
        return SimpleNamespace(error_code=90)

    target.responses["EndTxn"] = fenced
    with pytest.raises(LinkPromotedError):
        run(filler.fill(P, Gap(0, 1)))
    assert names(target)[-1] == "InitProducerId" and names(target).count("AddPartitionsToTxn") == 1
    with pytest.raises(LinkPromotedError):
        run(filler.fill(P, Gap(0, 1)))
    assert names(target).count("AddPartitionsToTxn") == 1


def test_it_is_asked_once_a_takeover_whether_transactions_may_fill() -> None:
    target = FakeTarget()
    filler = transacting(target)
    for end in range(3):
        run(filler.fill(P, Gap(end, end + 1)))
    assert target.looks == 1


def lapsing(target: FakeTarget) -> None:
    """From now on the replicas lag, and once they have caught up writing is no longer allowed."""
    sleep, target.unreplicated = target.net.sleep, 1

    async def lapse(delay: float) -> None:
        target.is_promoted, target.unreplicated = True, 0
        await sleep(delay)

    target.net.sleep = lapse


def test_a_claim_that_lapses_while_the_replicas_are_waited_for_fills_nothing() -> None:
    target = FakeTarget(log_end=5)
    filler = transacting(target)
    taken = target.responses["InitProducerId"]

    def take_over(request: Any) -> Any:
        lapsing(target)
        return taken(request)

    target.responses["InitProducerId"] = take_over
    with pytest.raises(LinkPromotedError):
        run(filler.fill(P, Gap(5, 6)))
    assert names(target)[-1] == "InitProducerId"


def test_a_producer_that_has_waited_its_turn_asks_again_whether_it_may_fill() -> None:
    target = FakeTarget()
    filler = transacting(target)
    run(filler.fill(P, Gap(0, 1)))
    filler._locks._taken[P] = busy = Future()
    second, sent = filler.fill(P, Gap(1, 2)), len(target.sent)
    assert second.send(None) is not None, "it waits"
    lapsing(target)
    filler._locks._taken.pop(P)
    busy.success(None)
    with pytest.raises(LinkPromotedError):
        run(second)
    assert len(target.sent) == sent


def test_markers_of_a_promoted_link_are_not_sent() -> None:
    target = FakeTarget()

    def respond(request: Any) -> Any:
        target.is_promoted = True  # while the first request is in flight, and its markers land before the fence
        return target.append(len(request.markers), marked(request))

    target.responses["WriteTxnMarkers"] = respond
    with pytest.raises(LinkPromotedError):
        run(marking(target).fill(P, Gap(0, 5_000)))
    assert len(target.sent) == 1


def test_markers_for_a_leader_that_a_running_upgrade_has_not_reached_were_not_sent() -> None:
    target = FakeTarget()

    def refuse(_: Any) -> Any:
        raise Errors.IncompatibleBrokerVersion("WriteTxnMarkers [1-1] and broker [0-0]")

    target.responses["WriteTxnMarkers"] = refuse
    filler = marking(target)
    with pytest.raises(OptionError, match="Kafka 2.8 or newer; set --gap-fill transactions"):
        run(filler.fill(P, Gap(0, 1)))
    assert not filler.has_unanswered(P)


def test_markers_follow_what_the_end_of_a_fenced_transaction_has_written() -> None:
    """Its marker lies in the gap, whose other offsets are the next to be filled."""
    target = FakeTarget()
    target.responses["WriteTxnMarkers"] = lambda request: target.append(len(request.markers), marked(request))
    fenced: list[TopicPartition] = []

    async def fence(partition: TopicPartition) -> bool:
        fenced.append(partition)
        target.log_end += len(fenced) == 1
        return len(fenced) == 1

    filler = MarkerFiller(target, target.may_write, fence=fence, clock=target.clock)  # type: ignore[arg-type]
    assert run(filler.fill(P, Gap(0, 3))) == 3
    (request,) = target.sent
    assert [(m.producer_id, m.producer_epoch) for m in request.markers] == [marker_producer(1), marker_producer(2)]
