"""What is said of a link: its record, what operators change, what stands in the way of moving to the target and back."""

from __future__ import annotations

import asyncio
import json
import shlex
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as Errors
import pytest
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.structs import TopicPartition

from spark_integration.cli.exits import exit_code
from support.control_topic import ControlTopic
from tolerant_client.cluster.admin.transactions import ProducerEntry
from tolerant_client.cluster.cluster import Cluster, OffsetAndEpoch
from tolerant_client.errors import LinkPromotedError, OptionError, OrdersHiddenError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.engine.identical.begun import copied_so_far
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.next_sequence import next_append
from tolerant_client.mirror.life import failback_blockers
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.plan_report import durability
from tolerant_client.mirror.life.repair import former_of
from tolerant_client.mirror.life.shared_log import SharedLog
from tolerant_client.mirror.life.status_reasons import still
from tolerant_client.mirror.state import control_topic
from tolerant_client.mirror.state.control_record import controls_of, decode_control, encode_control, newest_of, rank
from tolerant_client.mirror.state.control_topic import ControlsWatch, ControlWatch
from tolerant_client.mirror.state.link_control import (
    NO_LIMIT,
    WHOLE_LINK,
    LinkControl,
    TopicIds,
    link_options,
    require_finished,
    unfinished,
)
from tolerant_client.mirror.state.plan import TopicSpec
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.mm2.flows import read_flows
from tolerant_client.ops.service.clusters import both
from tolerant_client.records.record_batch import Record

P = TopicPartition("orders", 3)
Q, OLD = TopicPartition("orders", 4), TopicPartition("old", 0)
ORDERS = LinkTopics.of("orders").to_json()
FULL = LinkControl(
    frozenset({"orders", "clicks-3"}),
    1000,
    True,
    True,
    2,
    "abc",
    ORDERS,
    (4000,),
    {P: 12},
    {TopicPartition("clicks", 0): 7},
)


# -- the record ---------------------------------------------------------------


def test_a_control_is_read_as_it_was_written_and_when() -> None:
    written, asked = encode_control(FULL, 1), replace(FULL)
    assert decode_control(written) == FULL and decode_control(written).written_ms == 1
    assert decode_control(encode_control(LinkControl(), 1)) == LinkControl()
    assert not asked.writes("none of its topics") and encode_control(asked, 1) == written


@pytest.mark.parametrize(("is_fenced", "is_promoted"), [(False, False), (True, True)])
def test_a_promotion_has_the_name_in_a_record_that_it_always_had(is_fenced: bool, is_promoted: bool) -> None:
    earlier = json.dumps({"version": 1, "is_promoted": True, "is_fenced": is_fenced}).encode()
    read = decode_control(earlier)
    assert (read.is_promotion_begun, read.is_promoted, read.is_half_promoted) == (True, is_promoted, not is_promoted)
    again = json.loads(encode_control(read, 1))
    assert again["is_promoted"] is True and "is_promotion_begun" not in again


def test_a_control_that_an_earlier_failover_wrote_without_topics_has_those_that_it_fenced() -> None:
    written = LinkControl(is_promotion_begun=True, is_fenced=True, copied_until={TopicPartition("a.b", 0): 3, P: 9})
    read = decode_control(encode_control(written, 1))
    assert read == replace(written, topics=read.topics) and read.topics is not None
    topics = LinkTopics.from_json(read.topics)
    assert topics.writes("a.b") and topics.writes("orders") and not topics.writes("aab")
    unfinished = replace(written, is_fenced=False, unfenced=frozenset((Q,)))
    assert decode_control(encode_control(unfinished, 1)) == unfinished, "its repeat is given the topics"


def test_a_failover_without_a_control_says_of_what_it_fenced_alone_that_the_link_had_it() -> None:
    """Its expressions match topics of others, which are from other clusters."""
    found = LinkControl(is_promotion_begun=True, topics=LinkTopics.of(".*").to_json())
    for untold in (found, replace(found, is_fenced=True)):  # the target may take no record that says it
        assert untold.writes("orders") and untold.writes("clicks")
    left = replace(found, copied_until={P: 3}, unfenced=frozenset((TopicPartition("late", 0),)))
    fenced = replace(found, is_fenced=True, begun={P: TopicIds()})
    for control in (left, fenced, replace(fenced, begun={}, copied_until={P: 3})):
        assert control.writes("orders") and not control.writes("clicks") and control.writes("late") == (control is left)
    assert replace(fenced, source_cluster_id="A").writes("clicks") and not LinkControl().writes("orders")
    # Was refused what its expression matches besides.
    ordinary = replace(fenced, source_cluster_id="A", copied_until={P: 3})
    assert ordinary.writes("orders") and not ordinary.writes("clicks")
    assert replace(ordinary, is_promotion_begun=False, is_fenced=False).writes("clicks")


def test_fields_of_other_versions_are_kept() -> None:
    value = json.dumps({**json.loads(encode_control(FULL, 1)), "colour": ["blue"]}).encode()
    read = decode_control(value)
    assert read.others == {"colour": ["blue"]}
    assert json.loads(encode_control(replace(read, is_promotion_begun=False), 2))["colour"] == ["blue"]


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"no JSON", b"{}", b'{"version": 1, "adopted": [1]}', b'{"version": "x"}']
)
def test_what_is_no_control_is_refused(value: bytes) -> None:
    with pytest.raises(OptionError, match="tolerant-mirror-control"):
        decode_control(value)


@pytest.mark.parametrize(
    "spans", [[[0, 20_000_000]], [[0, 2**31 - 1]], [[0, 150_000]] * 2, [[5, 4]], [[-1, 3]], [[0]], [[0, 10**40]]]
)
def test_a_few_bytes_of_ranges_unfold_to_no_more_partitions_than_a_cluster_has(spans: list[list[int]]) -> None:
    value = json.dumps({"version": 1, "begun": {"t": [["a", "b", spans]]}}).encode()
    tracemalloc.start()
    with pytest.raises(OptionError, match="tolerant-mirror-control is not ours"):
        decode_control(value)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["adopted", "starts", "copied", "unfenced", "paused_partitions"])
def test_each_field_names_no_more_partitions_than_a_cluster_has(name: str) -> None:
    numbers = range(200_001)
    is_list = name in ("unfenced", "paused_partitions")
    named = [["t", n] for n in numbers] if is_list else {"t": dict.fromkeys(map(str, numbers), 5)}
    with pytest.raises(OptionError, match="not ours .more than 200,000 partitions"):
        decode_control(json.dumps({"version": 1, name: named}).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"generation": 10**40},
        {"bytes_per_s": -1},
        {"producer_ids": [2**63]},
        {"producer_ids": "12"},
        {"paused": "abc"},
        {"paused": [7]},
        {"is_promoted": "false"},
        {"topics": 5},
        {"topics": "rubbish"},
        {"topics": "\udfff"},
        {"source_cluster_id": {}},
        {"unfenced": [["clicks", 3, 4]]},
        {"unfenced": [["clicks", 2**31]]},
        {"copied": {"t": {"0": "7"}}},
        {"copied": {"t": {"٣": 7}}},
        {"starts": {"t": {"0": 1e5}}},
        {"adopted": {"t": {"-1": 5}}},
    ],
)
def test_a_field_that_no_mirror_writes_makes_the_record_none_of_ours(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="tolerant-mirror-control is not ours"):
        decode_control(json.dumps({"version": 1, **fields}).encode())


def test_what_is_kept_of_other_versions_can_be_written_again() -> None:
    deep = b'{"version": 1, "x": ' + b"[" * 500 + b"]" * 500 + b"}"
    with pytest.raises(OptionError, match="nested too deeply"):
        decode_control(deep)


def test_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(OptionError, match="newer tolerant-client"):
        decode_control(b'{"version": 2}')


@pytest.mark.parametrize(
    ("names", "partitions", "is_paused"),
    [
        ((), (), False),
        ((WHOLE_LINK,), (), True),
        (("orders",), (), True),
        ((), (P,), True),
        ((), (TopicPartition("orders", 4),), False),
        (("orders-3", "order"), (), False),  # topics of their own
    ],
)
def test_a_partition_is_paused_by_itself_its_topic_or_its_link(
    names: tuple[str, ...], partitions: tuple[TopicPartition, ...], is_paused: bool
) -> None:
    control = LinkControl(frozenset(names), paused_partitions=frozenset(partitions))
    assert control.pauses(P) is is_paused
    assert decode_control(encode_control(control, 1)) == control


def test_a_pause_of_an_older_version_is_kept_whichever_of_both_its_name_means() -> None:
    names = ["", "clicks-3", "orders", "pay-1-0", "-5", "a-", "a-x", "a-٣", "a-99999999999", f"a-{2**31}"]
    read = decode_control(json.dumps({"version": 1, "paused": names}).encode())
    assert read.paused == set(names)
    assert read.paused_partitions == {("clicks", 3), ("pay-1", 0)}
    assert decode_control(encode_control(replace(read, paused_partitions=frozenset()), 1)).paused_partitions == set()


def test_a_later_life_has_a_producer_of_its_own() -> None:
    assert LinkControl().producer_name("dr") == "dr"
    assert LinkControl(generation=2).producer_name("dr") == "dr~2"


CLUSTERS: list[Any] = [
    SimpleNamespace(
        file_options="",
        bootstrap_servers=f"{name}:9092",
        manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"}),
    )
    for name in ("b", "a")
]
TARGET, SOURCE = CLUSTERS


def test_a_promoted_link_may_not_write() -> None:
    LinkControl().require_not_promoted("dr", TARGET)
    with pytest.raises(LinkPromotedError, match="failback"):
        LinkControl(is_promotion_begun=True, is_fenced=True).require_not_promoted("dr", TARGET)


def test_a_promotion_that_was_not_finished_is_told_as_one_and_not_as_done() -> None:
    again = "begun and not finished.* run again: tolerant-kafka promote --source {} --target b:9092 --link dr or, .*failover"
    with pytest.raises(LinkPromotedError, match=again.format("SOURCE")):
        LinkControl(is_promotion_begun=True).require_not_promoted("dr", TARGET)
    with pytest.raises(LinkPromotedError, match=again.format("a:9092")) as caught:
        LinkControl(is_promotion_begun=True).require_not_promoted("dr", TARGET, SOURCE)
    assert "failback" not in str(caught.value) and exit_code(caught.value) == 2
    with pytest.raises(
        LinkPromotedError, match="may still write there: orders-3; .*run again: tolerant-kafka failover"
    ):
        LinkControl(is_promotion_begun=True, unfenced=frozenset({P})).require_not_promoted("dr", TARGET)
    of_file: Any = SimpleNamespace(file_options="--config mm2.properties --flow 'A->B'")
    with pytest.raises(LinkPromotedError, match="tolerant-kafka promote --config mm2.properties --flow 'A->B' or, "):
        LinkControl(is_promotion_begun=True).require_not_promoted("dr", of_file)
    with pytest.raises(OptionError, match="Link dr cannot begin again: its promotion was begun and not finished"):
        require_finished(LinkControl(is_promotion_begun=True), "dr", of_file, of_file)


# -- of several records one counts --------------------------------------------


def test_record_of_a_mirror_that_was_killed_before_it_could_look_takes_no_promotion_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        await topic.change(topics=ORDERS)

        async def fail_over() -> None:
            await topic.change("other", paused=frozenset({"x"}))
            await topic.change(is_promotion_begun=True)
            topic.is_killed = True

        topic.before_append.append(fail_over)
        with pytest.raises(KeyboardInterrupt):
            await topic.change(copied={P: 100})
        assert json.loads(topic.log[-1].value or b"")["is_promoted"] is False
        assert await topic.read() == LinkControl(topics=ORDERS, is_promotion_begun=True)
        topic.is_killed = False
        await topic.change(is_fenced=True)
        assert await topic.read() == LinkControl(topics=ORDERS, is_promotion_begun=True, is_fenced=True)

    asyncio.run(run())


def test_two_writers_at_once_both_have_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        for _ in range(2):
            topic.before_append.append(lambda: topic.change(is_promotion_begun=True))
            await topic.change(bytes_per_s=7)
            assert await topic.read() == LinkControl(is_promotion_begun=True, bytes_per_s=7)
            await topic.change(is_promotion_begun=False, bytes_per_s=None)

    asyncio.run(run())


def test_who_follows_the_control_reads_for_a_write_what_was_appended_since_and_builds_on_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copier writes every 30 s, for days, while it holds claims: the topic's age must not matter."""
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        for at in range(100):
            await topic.change(copied={P: at})
        watch = ControlWatch(cast(Cluster, topic), "dr")
        await watch.refresh()
        await topic.change("other", paused=frozenset({"x"}))
        await topic.change(is_promotion_begun=True)
        topic.read_from.clear()
        for at in (200, 300):
            await watch.update(lambda now, at=at: replace(now, copied={P: at}))
        assert topic.read_from == [100, 101, 102, 102, 103], "each record, but its own once more when it looks next"
        assert await topic.read() == LinkControl(is_promotion_begun=True, copied={P: 300})

        async def pause() -> None:
            await topic.change(paused=frozenset({"x"}))
            await watch.refresh()  # another task of the copier

        topic.before_append.append(pause)
        await watch.update(lambda now: replace(now, copied={P: 400}))
        assert await topic.read() == LinkControl(paused=frozenset({"x"}), is_promotion_begun=True, copied={P: 400})

    asyncio.run(run())


def test_a_new_leader_that_lacks_what_was_read_is_read_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unclean election, or a broker that comes back with an older disk: the log is as long as before, and says something else."""
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        await topic.change(topics=ORDERS)
        await topic.change(copied={P: 1})
        watch, watches = ControlWatch(cast(Cluster, topic), "dr"), ControlsWatch(cast(Cluster, topic))
        assert (await watch.refresh()).copied == {P: 1} and set((await watches.read()).links) == {"dr"}
        del topic.log[-1]
        topic.leader_epochs = [5]
        await topic.change(paused=frozenset({"x"}))
        assert len(topic.log) == watch.position
        said = LinkControl(topics=ORDERS, paused=frozenset({"x"}))
        assert await watch.refresh() == said and (await watches.read()).links == {"dr": said}
        await watch.update(lambda now: replace(now, copied={P: 2}))
        assert await topic.read() == replace(said, copied={P: 2})

    asyncio.run(run())


def test_who_asks_again_for_the_controls_of_all_links_reads_what_was_appended_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ControlTopic(monkeypatch)
    watch = ControlsWatch(cast(Cluster, topic))
    begun = {P: TopicIds("s", "t")}

    async def look() -> list[int]:
        """The offsets that it reads now; what it says then is what the whole log says."""
        topic.read_from.clear()
        for names in (None, (), [P.topic]):
            assert await watch.read(names) == controls_of(topic.log, names)
        return list(topic.read_from)

    async def run() -> None:
        for at in range(50):
            await topic.change(copied={P: at}, begun=begun)
            await topic.change("other", copied={P: at})
        assert await look() == list(range(100)) and await look() == []
        for said in (
            (b"dr", b"rubbish"),
            (b"dr", encode_control(LinkControl(bytes_per_s=7), 5, 3)),  # of who did not know what was written since
            (b"other", None),
            (b"no link's name?", b"rubbish"),
            (b"new", encode_control(LinkControl(bytes_per_s=7), 5)),
        ):
            topic.log.append(Record(len(topic.log), 0, *said))
            assert await look() == [len(topic.log) - 1]
        assert set(controls_of(topic.log).links) == {"dr", "new"}
        topic.log, topic.id = topic.log[:2], "anew"
        assert await look() == [0, 1]

    asyncio.run(run())


def test_what_a_process_of_a_former_life_writes_says_nothing_else_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        watch = ControlWatch(cast(Cluster, topic), "dr")
        await watch.refresh()
        await topic.change(generation=1, topics=ORDERS)
        assert (await watch.refresh()).is_promotion_begun, "for this process"
        await watch.update(lambda now: replace(now, producer_ids=(7,)))
        assert await topic.read() == LinkControl(generation=1, topics=ORDERS, producer_ids=(7,))

    asyncio.run(run())


@pytest.mark.parametrize(
    "changes", [{"bytes_per_s": 2**63}, {"topics": '{"include": ["\udcfc"]}'}, {"paused": frozenset({"\udcfc"})}]
)
def test_what_could_not_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        await topic.change(topics=ORDERS)
        with pytest.raises(OptionError, match="Nothing is written for link dr"):
            await topic.change(**changes)
        assert len(topic.log) == 1 and await topic.read() == LinkControl(topics=ORDERS)

    asyncio.run(run())


def test_a_record_that_the_topic_does_not_take_is_told_with_its_size_and_what_to_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ControlTopic(monkeypatch)
    topic.name, topic.codec = "tolerant-mirror-control", 0

    async def refuse() -> None:
        raise Errors.MessageSizeTooLargeError("appending to tolerant-mirror-control-0")

    topic.before_append.append(refuse)
    with pytest.raises(
        Errors.MessageSizeTooLargeError,
        match=r"takes no record of 1,\d* bytes.*message.bytes=(4096|8192)\).* several links",
    ):
        asyncio.run(topic.change(topics=ORDERS, paused=frozenset({"x" * 500})))


def test_what_a_link_remembers_of_topics_that_are_gone_goes_unless_they_were_begun_anew() -> None:
    known = LinkControl(
        begun={P: TopicIds("s", "t"), Q: TopicIds("s", "t"), OLD: TopicIds()},
        copied=dict.fromkeys((P, Q, OLD), 7),
        starts={P: 3},
        starts_of={P: TopicIds("s")},
        log_starts={P: 3},
        adopted={P: 3},
    )
    now = replace(known, begun={**known.begun, Q: TopicIds("s", "u")})
    left = now.without({P.topic, OLD.topic}, known)
    assert left == LinkControl(begun={Q: TopicIds("s", "u"), OLD: TopicIds()}, copied={Q: 7, OLD: 7})
    assert now.without({"clicks"}, known) is now


def said(offset: int, knew: int | None, time_ms: int = 5, **changes: Any) -> Record:
    found = json.loads(encode_control(LinkControl(**changes), 5, knew or 0))
    if knew is None:
        del found["knew"]
    return Record(offset, 0, b"dr", json.dumps({**found, "time_ms": time_ms}).encode())


def test_record_of_a_version_that_does_not_say_what_it_knew_counts_from_where_it_lies() -> None:
    first, old, late, next_one = said(3, 0), said(7, None), said(8, 4), said(9, 8)
    kept = said(10, 8, time_ms=6)  # what it does not understand an older version copies
    assert newest_of("dr", [first, late]) is late
    assert newest_of("dr", [first, old, late]) is old
    assert newest_of("dr", [first, old, late, next_one]) is next_one
    assert newest_of("dr", [kept], next_one) is kept
    assert newest_of("other", [first]) is newest_of("dr", []) is None


def test_record_whose_topics_cannot_be_read_counts_as_none_that_can() -> None:
    live, strange = said(3, 0), Record(4, 0, b"dr", b'{"version": 1, "topics": "rubbish"}')
    assert newest_of("dr", [live, strange]) is strange
    with pytest.raises(OptionError, match="not ours .Not the topics of a link"):
        decode_control(strange.value or b"")
    again = live._replace(offset=5)
    assert newest_of("dr", [again], strange) is again and controls_of([live, strange, again]).unreadable == ()


def test_what_a_link_has_begun_is_read_before_a_record_that_cannot_be_read_if_it_is_asked_for() -> None:
    begun = {TopicPartition("orders", 0): TopicIds("a", "b")}
    records = [said(3, 0, begun=begun), Record(4, 0, b"dr", b"rubbish")]
    assert controls_of(records, None).links["dr"].begun == controls_of(records, ["orders"]).links["dr"].begun == begun
    assert controls_of(records).links["dr"].begun == controls_of(records, ["clicks"]).links["dr"].begun == {}


def test_record_without_a_value_takes_a_link_away_before_the_topic_is_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    former, gone, later = said(3, 0, is_promotion_begun=True), Record(4, 0, b"dr", None), said(5, 0, bytes_per_s=7)
    assert newest_of("dr", [former, gone]) is newest_of("dr", [gone], former) is None
    assert controls_of([former, gone]).links == {}
    assert newest_of("dr", [former, gone, later]) is newest_of("dr", [gone, later]) is later
    assert controls_of([former, gone, later]) == controls_of([gone, later])
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        await topic.change(is_promotion_begun=True)
        following = ControlWatch(cast(Cluster, topic), "dr")
        await following.refresh()
        topic.log.append(gone._replace(offset=1))
        assert (await following.refresh()).is_promotion_begun, "what runs goes on under what it has read"
        assert await topic.read() == LinkControl()
        await topic.change(bytes_per_s=7)
        assert await topic.read() == LinkControl(bytes_per_s=7)

    asyncio.run(run())


@pytest.mark.parametrize("knew", [-1, 2**70, 1.5, True, "3", [3], None])
def test_what_no_record_can_have_known_is_not_believed(knew: object) -> None:
    strange = Record(4, 0, b"dr", json.dumps({"version": 1, "time_ms": 5, "knew": [knew, 5]}).encode())
    assert rank(strange) == (4, -4)


# -- what operators change ----------------------------------------------------


@pytest.mark.parametrize(("said", "rate"), [(None, 500), (NO_LIMIT, None), (7, 7)])
def test_an_operators_rate_goes_before_that_of_the_file(said: int | None, rate: int | None) -> None:
    control = decode_control(encode_control(LinkControl(bytes_per_s=said), 1))
    assert control.rate(500) == rate
    assert LinkControl().rate(None) is None


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"bootstrap_servers": ["b:1", "c:2"]}, "--target b:1,c:2"),
        ({"bootstrap_servers": "b:1", "security_protocol": "SSL"}, "--target b:1 --target-properties FILE"),
    ],
)
def test_the_options_of_a_remedy_are_all_that_its_command_takes(config: dict[str, Any], options: str) -> None:
    with Cluster(config, name="target") as target, Cluster({"bootstrap_servers": "a:1"}, name="source") as source:
        assert link_options("d r", target) == f"{options} --link 'd r'"
        assert link_options("dr", target, source) == f"--source a:1 {options} --link dr"


def test_a_remedy_for_a_link_of_a_file_names_the_file(tmp_path: Path) -> None:
    """Its logins are there: the operator has no other file that a plain form could name, and it refuses --topics."""
    file = tmp_path / "mm 2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    flow = read_flows(file).flows[0]
    assert shlex.split(flow.options) == ["--config", str(file), "--flow", "A->B"]
    with both(flow.source, flow.target, file_options=flow.options) as (source, target):
        assert link_options(flow.link, target) == link_options(flow.link, target.apart(), source) == flow.options


# -- following it -------------------------------------------------------------


class SlowWatch(ControlWatch):
    """Each look takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(None, "dr")  # type: ignore[arg-type]
        self.looks: list[Future] = []

    async def _read(self) -> None:
        look = Future()
        self.looks.append(look)
        await look


def test_a_look_that_began_before_is_not_enough_and_callers_share_one() -> None:
    net = NetworkSelector()
    watch = SlowWatch()
    done: list[int] = []

    async def ask(number: int) -> None:
        await watch.refresh()
        done.append(number)

    async def course() -> None:
        net.call_soon(lambda: ask(1))
        await net.sleep(0.01)
        net.call_soon(lambda: ask(2))
        net.call_soon(lambda: ask(3))
        await net.sleep(0.01)
        assert len(watch.looks) == 1
        watch.looks[0].success(None)
        await net.sleep(0.01)
        assert done == [1] and len(watch.looks) == 2
        watch.looks[1].success(None)
        await net.sleep(0.01)

    net.run(course)
    net.close()
    assert sorted(done) == [1, 2, 3] and len(watch.looks) == 2


def test_a_look_that_fails_is_told_to_all_who_wait_for_it() -> None:
    net = NetworkSelector()
    watch = SlowWatch()
    failed: list[str] = []

    async def ask() -> None:
        try:
            await watch.refresh()
        except OptionError as error:
            failed.append(str(error))

    async def course() -> None:
        net.call_soon(ask)
        await net.sleep(0.01)
        for _ in range(2):
            net.call_soon(ask)
        await net.sleep(0.01)
        watch.looks[0].success(None)
        await net.sleep(0.01)
        watch.looks[1].failure(OptionError("no control"))
        await net.sleep(0.01)
        net.call_soon(ask)
        await net.sleep(0.01)
        assert len(watch.looks) == 3
        watch.looks[2].success(None)
        await net.sleep(0.01)

    net.run(course)
    net.close()
    assert len(failed) == 2


def test_only_the_newest_record_of_a_link_counts_so_that_rubbish_is_cleared_by_the_one_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ControlTopic(monkeypatch)
    monkeypatch.setattr(control_topic, "control_topic", lambda _: topic)
    log = topic.log
    log += [
        Record(0, 1, b"dr", encode_control(FULL, 1)),
        Record(1, 1, b"dr", b"rubbish"),
        Record(2, 1, b"eu", b"rubbish"),
    ]

    def look(watch: ControlWatch) -> LinkControl:
        with pytest.raises(StopIteration):
            watch._read().send(None)
        return watch.value

    target = cast(
        Cluster,
        SimpleNamespace(
            bootstrap_servers="b:1", manager=SimpleNamespace(config={"security_protocol": "PLAINTEXT"}), file_options=""
        ),
    )
    watch = ControlWatch(target, "dr")
    with pytest.raises(OptionError, match="not ours .*run tolerant-kafka repair --target b:1 --link dr$"):
        look(watch)
    log.append(Record(3, 1, b"dr", b'{"version": 2}'))
    with pytest.raises(OptionError, match="install that version here, too$"):
        look(watch)
    log.append(Record(4, 1, b"dr", encode_control(FULL, 1)))
    assert look(watch) == look(ControlWatch(target, "dr")) == FULL


def test_a_control_topic_that_was_made_anew_is_read_from_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ControlTopic(monkeypatch)
    watch = ControlWatch(cast(Cluster, topic), "dr")
    topic.log = [Record(0, 1, b"dr", encode_control(LinkControl(bytes_per_s=5), 1))]
    assert asyncio.run(watch.refresh()).bytes_per_s == 5
    topic.log, topic.id = [Record(0, 1, b"dr", encode_control(LinkControl(bytes_per_s=7), 1))], "anew"
    assert asyncio.run(watch.refresh()).bytes_per_s == 7
    topic.log, topic.id = [Record(0, 1, b"other", encode_control(LinkControl(), 1))], "once more"
    assert asyncio.run(watch.refresh()).bytes_per_s == 7, "what it said last still holds"


def test_a_control_that_was_readable_and_is_refused_now_says_nothing_until_it_may_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = ControlTopic(monkeypatch)
    topic.log = [Record(0, 1, b"dr", encode_control(LinkControl(bytes_per_s=5), 1))]
    watch = ControlWatch(cast(Cluster, topic), "dr")
    assert asyncio.run(watch.refresh()).bytes_per_s == 5
    topic.is_refused = True
    topic.log.append(Record(1, 1, b"dr", encode_control(LinkControl(is_promotion_begun=True), 1, 1)))
    for _ in range(2):
        with pytest.raises(
            OrdersHiddenError, match="we may not read topic tolerant-mirror-control .*grant us Describe"
        ):
            asyncio.run(watch.refresh())
    assert asyncio.run(topic.read()) == LinkControl(is_hidden=True)
    with pytest.raises(OrdersHiddenError):
        asyncio.run(topic.change(bytes_per_s=7))
    topic.is_refused = False
    assert asyncio.run(watch.refresh()).is_promotion_begun, "at once, not a minute later"


def test_a_control_that_says_no_more_what_the_link_copies_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ControlTopic(monkeypatch)
    watch = ControlWatch(cast(Cluster, topic), "dr")
    written = LinkControl(topics=ORDERS, producer_ids=(4,))

    def seen(topic_id: str, *said: tuple[bytes, LinkControl]) -> bool:
        topic.id = topic_id
        topic.log = [Record(n, 1, link, encode_control(control, 1, n)) for n, (link, control) in enumerate(said)]
        assert asyncio.run(watch.refresh()).topics in (None, ORDERS)
        return watch.is_forgotten

    assert not seen("first"), "nothing was known before the first start"
    assert not seen("first", (b"dr", written))
    assert seen("second", (b"other", written)), "another link has made the topic that was deleted again"
    assert seen("second", (b"other", written), (b"dr", LinkControl(copied={P: 12}))), "its own copiers write there, too"
    assert not seen("second", (b"other", written), (b"dr", LinkControl()), (b"dr", written))
    topic.is_there = False
    assert seen("")


def test_what_counts_before_rubbish_is_what_a_repair_writes_once_more() -> None:
    log = [
        Record(0, 1, b"dr", encode_control(FULL, 1)),
        Record(1, 1, b"eu", encode_control(LinkControl(), 1)),
        Record(2, 1, b"dr", b"x"),
    ]
    assert former_of("dr", log) == FULL
    assert former_of("dr", log[2:]) is None and former_of("none", log) is None
    assert former_of("dr", [log[0], Record(1, 1, b"dr", None), log[2]]) is None, "it was taken away"


def test_a_process_of_a_former_life_may_not_write_in_the_next() -> None:
    watch = ControlWatch(None, "dr")  # type: ignore[arg-type]
    assert watch._as_of_our_life(LinkControl(generation=1)) == LinkControl(generation=1)
    watch.is_read = True
    assert watch._as_of_our_life(LinkControl(generation=1)).is_promotion_begun
    assert watch._as_of_our_life(LinkControl(bytes_per_s=5)) == LinkControl(bytes_per_s=5)


@pytest.mark.parametrize(("generation", "is_ours"), [(1, True), (2, True), (None, True), (0, False)])
def test_a_process_that_is_started_for_a_former_life_does_not_belong_to_the_next(
    monkeypatch: pytest.MonkeyPatch, generation: int | None, is_ours: bool
) -> None:
    """A new worker of an old job: it has read nothing before."""
    topic = ControlTopic(monkeypatch)

    async def run() -> None:
        await topic.change(topics=ORDERS, generation=1, adopted={P: 9})
        watch = ControlWatch(cast(Cluster, topic), "dr", generation)
        assert (await watch.refresh()).is_promoted is not is_ours
        await topic.change(copied={P: 10})
        assert (await watch.refresh()).is_promoted is not is_ours
        if is_ours:
            await watch.require_not_promoted()
        else:
            with pytest.raises(
                LinkPromotedError, match="Link dr was promoted: its target belongs to its own producers"
            ):
                await watch.require_not_promoted()
        assert await topic.read() == LinkControl(topics=ORDERS, generation=1, adopted={P: 9}, copied={P: 10})

    asyncio.run(run())


# -- failback -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "discards", "count"),
    [
        (SharedLog("t", 0, 10, 10, 15), False, 0),
        (SharedLog("t", 0, 10, 12, 15, 2, ((10, 12),)), False, 1),
        (SharedLog("t", 0, 10, 12, 15, 2, ((10, 12),)), True, 0),
        (SharedLog("t", 0, 10, 12, 15, 0, (), True, True), True, 1),
    ],
)
def test_a_log_with_what_was_never_copied_is_in_the_way_unless_it_is_given_up(
    log: SharedLog, discards: bool, count: int
) -> None:
    assert len(failback_blockers.blockers([log], discards=discards)) == count


def test_what_others_wrote_says_nothing_of_the_links_own_sequence() -> None:
    own, other = ProducerEntry(7, 0, 41, 5, -1), ProducerEntry(3, 0, 99, 9, -1)
    assert next_append(50, None, [other], 7, {7}) == AppendState(50, 7, 0, 50)
    assert next_append(50, None, [other, own], 7, {7}) == AppendState(50, 7, 0, 42, last_ms=5)
    assert next_append(50, None, [other], 7, {3, 7}) == AppendState(50, 3, 0, 100, last_ms=9)


def test_what_a_link_has_begun_is_kept_with_the_ids_of_both_topics_in_few_bytes() -> None:
    first, second, unknown = TopicIds("s1", "t1"), TopicIds("s2", "t1"), TopicIds("", "")
    begun = {TopicPartition("orders", n): first for n in range(10_000)}
    begun |= {TopicPartition("orders", 5): second, TopicPartition("old", 3): unknown}
    value = encode_control(LinkControl(begun=begun), 0)
    assert decode_control(value).begun == begun and len(value) < 1_000


def test_how_far_a_log_was_copied_is_kept_until_another_log_is_begun() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    ids, anew = TopicIds("s", "t"), TopicIds("s", "created again")
    control = LinkControl(begun={first: ids, second: ids}, copied={first: 100, second: 50})
    control = replace(control, log_starts={first: 70, second: 20})
    assert decode_control(encode_control(control, 0)) == control
    assert copied_so_far(control, {}, {second: 60}).copied == {first: 100, second: 60}
    assert copied_so_far(control, {first: anew}, {}) == LinkControl(
        begun={first: anew, second: ids}, copied={second: 50}, log_starts={second: 20}
    )


def test_where_a_log_is_to_begin_is_said_of_one_topic_of_the_source_and_no_other_of_its_name() -> None:
    first, second, other = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0)
    given = {first: OffsetAndEpoch(50, 1), second: OffsetAndEpoch(60, -1)}
    control = LinkControl().with_starts(given, {"orders": "s1"}).with_starts({other: OffsetAndEpoch(7, 0)}, {})
    assert decode_control(encode_control(control, 0)) == control
    assert [control.start_of(first, of) for of in ("s1", "s2", "")] == [50, None, 50]
    assert control.start_of(other, "x") == 7 and control.start_of(TopicPartition("none", 0), "x") is None
    assert control.start_of(first, "s1", 50) == 50 and control.start_of(first, "s1", 49) is None
    assert [control.start_of(first, "s1", 50, cut) for cut in (40, 60)] == [40, 50], "what follows a cut is newer"
    asked = [control.asked_start(p, of) for p, of in ((first, "s1"), (first, "s2"), (second, "s1"), (other, ""))]
    assert asked == [(1, 50), None, None, (0, 7)], "not of another topic, nor where no leader has told an epoch"
    anew = control.with_starts({first: OffsetAndEpoch(3, -1)}, {"orders": "s2"})
    assert anew.asked_start(first, "s2") is None
    assert (anew.start_of(first, "s2"), anew.start_of(second, "s2"), anew.start_of(second, "s1")) == (3, None, 60)


def test_a_start_of_a_version_that_does_not_say_whose_it_is_belongs_to_the_topic_that_was_begun() -> None:
    first = TopicPartition("orders", 0)
    fields = {"starts": {"orders": {"0": 50}, "new": {"0": 5}}, "begun": {"orders": [["s1", "t1", [[0, 1]]]]}}
    control = decode_control(json.dumps({"version": 1, **fields}).encode())
    assert control.starts_of == {first: TopicIds("s1")}
    recreated = replace(control, begun={first: TopicIds("s2", "t1")})
    assert decode_control(encode_control(recreated, 0)).start_of(first, "s2") is None


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [("s1", "s1", True), ("s1", "s2", False), ("", "s2", True), ("s1", "", True), ("", "", True)],
)
def test_another_topic_of_the_same_name_is_known_by_its_id_where_both_are_told(
    before: str, now: str, is_same: bool
) -> None:
    assert TopicIds(before, "t").is_of_source(TopicIds(now, "u")) is is_same
    assert TopicIds("s", before).is_of_target(TopicIds("r", now)) is is_same


def test_only_what_lies_behind_an_adopted_log_is_compared() -> None:
    assert Logs(5, 60, 0, 50, 40).common == (40, 50)
    assert Logs(5, 60, 0, 50).common == (5, 50)


def ends(copied: int, stable: int | None, end: int | None, index: int = 0) -> PartitionLag:
    return PartitionLag(TopicPartition("orders", index), copied, stable, end)


# -- the others ---------------------------------------------------------------


def test_what_a_link_writes_it_writes_under_its_names() -> None:
    assert LinkTopics.of("orders.*").writes("orders")
    assert not LinkTopics.of("orders.*").writes("clicks")
    assert not LinkTopics.of(".*").writes("tolerant-mirror-control")


def test_what_stands_still_is_told_unless_it_is_paused() -> None:
    first, second = [ends(5, 10, 10), ends(5, 10, 10, 1)], [ends(6, 12, 12), ends(5, 10, 10, 1)]
    (reason,) = still(first, second, LinkControl(), 2.0)
    assert reason.text.startswith("orders-1 has not moved for 2 s") and "5 offsets could be copied" in reason.text
    (reason,) = still(second := [*second, ends(5, 10, 10, 2)], second, LinkControl(), 2.0)
    assert reason.text.endswith("; 2 more partitions stand still, too")
    (reason,) = still(second[1:], second[1:], LinkControl(), 2.0)
    assert reason.text.endswith("; 1 more partition stands still, too")
    second.pop()
    assert still(first, second, LinkControl(paused_partitions=frozenset({TopicPartition("orders", 1)})), 2.0) == []


def test_a_promotion_that_died_on_the_way_is_told_with_the_commands_that_end_it() -> None:
    assert (
        unfinished(LinkControl(), "T", "B")
        == unfinished(LinkControl(is_promotion_begun=True, is_fenced=True), "T", "B")
        == []
    )
    (text,) = unfinished(
        LinkControl(is_promotion_begun=True), "--target b:1 --link dr", "--source a:1 --target b:1 --link dr"
    )
    assert "promote --source a:1 --target b:1 --link dr" in text and "failover --target b:1 --link dr" in text
    (text,) = unfinished(LinkControl(is_promotion_begun=True, unfenced=frozenset({P})), "--link dr", "B")
    assert "may still write there: orders-3;" in text and text.endswith("tolerant-kafka failover --link dr")


def spec(replicas: int, **config: Any) -> TopicSpec:
    return TopicSpec("orders", 1, replicas, {}, {name.replace("_", "."): value for name, value in config.items()})


def test_a_target_that_keeps_less_than_the_source_promises_is_named() -> None:
    source = spec(3, min_insync_replicas="2")
    assert durability([source], {}) == []
    assert durability([source], {"orders": spec(3, min_insync_replicas="2")}) == []
    fewer, less, unclean = durability(
        [source], {"orders": spec(2, min_insync_replicas="1", unclean_leader_election_enable="true")}
    )
    assert "2 replicas on the target and 3" in fewer and "min.insync.replicas=2" in less and "acknowledged" in unclean
