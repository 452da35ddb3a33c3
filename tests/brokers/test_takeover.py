"""There and back between MirrorMaker 2 and this mirror, twice, on real brokers; MirrorMaker 2 is what it leaves behind.

tests/jobs/test_from_mirrormaker_2.py does it once with the real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import kafka
import pytest
from kafka.structs import TopicPartition

from support.mirror_link import (
    append_batches,
    append_records,
    both,
    compare,
    consume,
    create_topic,
    delete_topic,
    ends,
    mirror,
    move_groups,
    prepare_translated_link,
)
from support.raising_copier import LinkCopier
from tolerant_client.cluster.admin.groups import CommittedOffset, commit_offsets
from tolerant_client.errors import LinkPromotedError, OptionError, TargetDivergedError
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.mirror.engine.prepare import prepare_link
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.follow.groups import GroupsReport
from tolerant_client.mirror.follow.translate import commit_group, group_offsets, translate_group
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.handback import HandBackReport, hand_back
from tolerant_client.mirror.life.plan_report import LinkPlan, plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import read_status
from tolerant_client.mirror.life.takeover import TakeoverReport, take_over
from tolerant_client.mirror.state.mm2_positions import encode_position, offsets_topic, read_positions_of_mm2
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter
from tolerant_client.ops.doctor.finding import Finding
from tolerant_client.ops.doctor.link_examination import Subject, examine
from tolerant_client.records.record_batch import Record, encode_batch

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class MirrorMaker2:
    """What it would do: copies of records at the target's end, and a note of how far it is."""

    def __init__(self, source: str, target: str, alias: str, topic: str) -> None:
        self.source, self.target, self.alias, self.topic = source, target, alias, topic
        create_topic(target, offsets_topic(alias), config={"cleanup.policy": "compact"})

    def copies(self, first: int, until: int, noted: int) -> None:
        """Source offsets [first, until); its note is that it goes on at `noted`."""
        found = consume(self.source, self.topic, 1, until)[0]
        copied = [Record(0, time, key, value) for offset, time, key, value, _ in found if first <= offset < until]
        append_batches(self.target, [(TopicPartition(self.topic, 0), encode_batch(copied))])
        self.notes(noted)

    def notes(self, offset: int) -> None:
        key = json.dumps(
            ["MirrorSourceConnector", {"cluster": self.alias, "partition": 0, "topic": self.topic}]
        ).encode()
        note = encode_batch([Record(0, 0, key, encode_position(offset))])
        append_batches(self.target, [(TopicPartition(offsets_topic(self.alias), 0), note)])

    @property
    def goes_on_at(self) -> int:
        with both(self.source, self.target) as (origin, there):
            return origin.run(read_positions_of_mm2, there, self.alias)[TopicPartition(self.topic, 0)].offset


def run(source: str, target: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    with both(source, target) as (origin, there):

        async def call() -> Any:
            return await function(origin, there, *args, **named)

        return origin.run(call)


def values(servers: str, topic: str) -> list[int]:
    """The numbers of a topic's records, by a consumer with read_committed."""
    found = consume(servers, topic, 1, 1 << 30, isolation_level="read_committed")[0]
    return [int(key) for _, _, key, _, _ in found]


def test_translated_offsets_there_and_back_twice(source: str, target: str) -> None:
    topic = link = alias = "taken-translated"
    topics, place = LinkTopics.of(topic), TopicPartition(topic, 0)
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(target, topic, 5, first=9_000)  # somebody else's
    append_records(source, topic, 100)
    mm2 = MirrorMaker2(source, target, alias, topic)
    mm2.copies(0, 100, noted=60)

    def taken() -> TakeoverReport:
        report: TakeoverReport = run(source, target, take_over, link, topics, alias, offsets="translated")
        return report

    def handed(**named: Any) -> HandBackReport:
        report: HandBackReport = run(source, target, hand_back, link, topics, alias, offsets="translated", **named)
        return report

    async def copy(origin: Any, there: Any) -> None:
        prepared = await prepare_translated_link(origin, there, topics, link)
        await LinkCopier(origin, there, translated_offsets(), link=link).copy(prepared.ends)

    assert [p.position for p in taken().partitions] == [100] == [p.position for p in taken().partitions]
    with pytest.raises(OptionError, match="nothing to hand back"):
        handed()
    append_records(source, topic, 20, first=100)
    run(source, target, copy)
    assert values(target, topic)[5:] == list(range(120))
    with pytest.raises(OptionError, match="copies into this target already"):
        taken()

    # A group that stands where MirrorMaker 2 copied must not skip what that has copied.
    async def stand(origin: Any, _: Any, group: str, offset: int) -> None:
        await group_offsets(origin, group)  # a cluster without groups makes the topic of their offsets first
        codes, failures = await commit_offsets(origin, {group: {place: CommittedOffset(offset, "")}})
        assert not failures and codes == {group: {place: 0}}

    run(source, target, stand, "taken-early", 50)
    run(source, target, stand, "taken-late", 110)
    groups: GroupsReport = run(source, target, move_groups, topics, TopicFilter(("taken-.*",)), link=link)
    assert [(m.position.group, m.position.offset) for m in groups.moved] == [("taken-late", 115)]
    assert [(x.name, x.reason) for x in groups.left] == [(f"group taken-early, {topic}-0", "before-takeover")]

    async def move(origin: Any, there: Any) -> Any:
        found = await translate_group(origin, there, link, "taken-early")
        assert not found[place].is_known and not found[place].is_exact
        return await commit_group(there, "taken-early", found.values()), await group_offsets(there, "taken-early")

    assert run(source, target, move) == ([], {})

    assert not handed(is_dry_run=True).is_done and mm2.goes_on_at == 60
    (changed,) = handed().partitions
    assert (changed.before, changed.after) == (60, 120) and mm2.goes_on_at == 120
    assert handed().partitions == (), "run again it finds nothing to do"
    append_records(source, topic, 30, first=120)
    with pytest.raises(LinkPromotedError, match="handed back"):
        run(source, target, copy)

    mm2.copies(120, 150, noted=130)
    append_records(source, topic, 10, first=150)
    (text,) = handed().blockers
    assert "-0 is 130, and" in text and "only up to 120" in text
    assert [p.position for p in taken().partitions] == [150]
    run(source, target, copy)
    assert values(target, topic)[5:] == list(range(160))
    assert handed().is_done and mm2.goes_on_at == 160


def test_a_translated_link_does_not_begin_what_mirrormaker_2_has_copied_before_it_takes_over(
    source: str, target: str
) -> None:
    """Also where another topic is copied already, and where somebody else has written before and after MirrorMaker 2's copies."""
    topic = link = alias = "taken-forgotten"
    beside = f"{topic}-new"  # MirrorMaker 2 has copied nothing of it
    topics = LinkTopics.of(f"{topic}.*")
    for servers in (source, target):
        create_topic(servers, topic)
        create_topic(servers, beside)
    append_records(source, topic, 100)
    append_records(target, topic, 5, first=9_000)
    mm2 = MirrorMaker2(source, target, alias, topic)
    mm2.copies(0, 100, noted=60)
    append_records(source, beside, 10)
    told = f"log {topic}-0 has what MirrorMaker 2 has copied up to the source's offset 60, as {offsets_topic(alias)} of the target says"

    async def copy(origin: Any, there: Any, of: LinkTopics) -> None:
        prepared = await prepare_translated_link(origin, there, of, link)
        await LinkCopier(origin, there, translated_offsets(), link=link).copy(prepared.ends)

    def planned() -> LinkPlan:
        plan: LinkPlan = run(source, target, plan_everything, link, topics, is_translated=True)
        return plan

    def blocked() -> list[Finding]:
        clusters = {"source": {"bootstrap.servers": source}, "target": {"bootstrap.servers": target}}
        checkup = examine(Subject(clusters, topics, link, seconds=0, is_translated=True))
        return [finding for finding in checkup.findings if finding.evidence.startswith("blocked")]

    (refusal,) = planned().refusals
    assert told in refusal and "Stop MirrorMaker 2, and run tolerant-kafka take-over" in refusal
    assert planned().exit_code == 3
    (finding,) = blocked()
    assert told in finding.evidence
    run(source, target, copy, LinkTopics.of(beside))
    with pytest.raises(TargetDivergedError, match=f"{told}: link {link} would append it once more"):
        run(source, target, copy, topics)
    with pytest.raises(TargetDivergedError, match=told):  # a start says it before it copies anything
        run(source, target, prepare_link, topics, link, is_translated=True)
    assert values(target, topic)[5:] == list(range(100)) and values(target, beside) == list(range(10))

    append_records(source, topic, 20, first=100)
    report = run(source, target, take_over, link, topics, alias, offsets="translated")
    assert [(p.topic, p.position) for p in report.partitions] == [(topic, 100)] and report.is_done
    assert planned().exit_code == 0 and blocked() == []
    run(source, target, copy, topics)
    assert values(target, topic)[5:] == list(range(120)) and values(target, beside) == list(range(10))
    with pytest.raises(OptionError, match="copies into this target already"):
        run(source, target, take_over, link, topics, alias, offsets="translated")

    # Positions of a former topic hold up nobody.
    delete_topic(source, topic)
    create_topic(source, topic)
    append_records(source, topic, 150, first=500)
    again = LinkTopics.of(topic)
    assert run(source, target, plan_everything, f"{link}-again", again, is_translated=True).exit_code == 0


def test_where_an_identical_link_differs_from_what_mirrormaker_2_has_copied_take_over_is_named_first(
    source: str, target: str
) -> None:
    topic = link = alias = "taken-differs"
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(source, topic, 100)
    admin = kafka.KafkaAdminClient(bootstrap_servers=source)
    admin.delete_records({TopicPartition(topic, 0): 10})
    admin.close()
    MirrorMaker2(source, target, alias, topic).copies(10, 100, noted=90)
    told = f"MirrorMaker 2 has copied here up to the source's offset 90, as {offsets_topic(alias)} of the target says: stop it, and run"
    plan = run(source, target, plan_everything, link, LinkTopics.of(topic), is_translated=False)
    (refusal,) = plan.refusals
    assert plan.exit_code == 3 and 0 < refusal.index(told) < refusal.index("tolerant-kafka failover")
    with pytest.raises(TargetDivergedError, match=told):
        mirror(source, target, topic, link)
    assert values(target, topic) == list(range(10, 100))


def test_a_quiet_log_with_a_transaction_at_its_end_is_all_copied_when_it_was_taken_over(
    source: str, target: str
) -> None:
    """Its last marker is no record to copy, whether retention has taken it or not; somebody else's record shifts the offsets."""
    topic = link = alias = "taken-quiet"
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(target, topic, 1, first=9_000)
    producer = kafka.KafkaProducer(bootstrap_servers=source, transactional_id="taken-quiet")
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(5):
        producer.send(topic, b"v", key=b"%d" % number)
    producer.commit_transaction()
    producer.close()
    MirrorMaker2(source, target, alias, topic).copies(0, 5, noted=5)
    (taken,) = run(source, target, take_over, link, LinkTopics.of(topic), alias, offsets="translated").partitions
    assert (taken.position, ends(source, topic), ends(target, topic)) == (5, [6], [6])
    assert [t.copied for t in run(source, target, read_status, link).topics] == [5]
    for command in (promote, lambda _, there, *args, **named: failover(there, *args, **named)):
        with pytest.raises(OptionError, match="No mirror of link taken-quiet has started since"):
            run(source, target, command, link, is_dry_run=True)

    async def copy(origin: Any, there: Any) -> None:
        prepared = await prepare_translated_link(origin, there, topic, link)
        await LinkCopier(origin, there, translated_offsets(), link=link).copy(prepared.ends)

    run(source, target, copy)
    for _ in range(2):
        report = run(source, target, promote, link, is_dry_run=True)
        assert (report.blockers, [(p.copied_until, p.lag) for p in report.partitions]) == ((), [(6, 0)])
        admin = kafka.KafkaAdminClient(bootstrap_servers=source)
        admin.delete_records({TopicPartition(topic, 0): 6})
        admin.close()
        run(source, target, copy)


def test_identical_offsets_there_and_back_twice(source: str, target: str) -> None:
    topic = link = alias = "taken-identical"
    topics = LinkTopics.of(topic)
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(source, topic, 100)
    mm2 = MirrorMaker2(source, target, alias, topic)
    mm2.copies(0, 100, noted=80)

    def back() -> HandBackReport:
        report: HandBackReport = run(source, target, hand_back, link, topics, alias)
        return report

    with pytest.raises(OptionError, match="nothing to hand back"):
        back()
    assert run(source, target, take_over, link, topics, alias).is_done
    with pytest.raises(OptionError, match="nothing to hand back"):
        back()
    assert mm2.goes_on_at == 80, "of a link that never ran nothing is known"
    append_records(source, topic, 20, first=100)
    mirror(source, target, topic, link)
    with pytest.raises(OptionError, match="there is nothing to take over"):
        run(source, target, take_over, link, topics, alias)
    assert back().is_done and mm2.goes_on_at == 120
    with pytest.raises(LinkPromotedError, match="handed back"):
        mirror(source, target, topic, link)
    append_records(source, topic, 40, first=120)
    mm2.copies(120, 150, noted=150)
    assert run(source, target, take_over, link, topics, alias).is_done
    mirror(source, target, topic, link)
    assert compare(source, target, topic).identical and ends(target, topic) == [160]

    # The target's retention takes all: its end is then a number that shows nothing, unless MirrorMaker 2 has noted it.
    assert back().is_done and mm2.goes_on_at == 160
    admin = kafka.KafkaAdminClient(bootstrap_servers=target)
    admin.delete_records({TopicPartition(topic, 0): 160})
    admin.close()
    append_records(source, topic, 10, first=160)
    mm2.notes(155)
    assert "do not have the source's offsets" in run(source, target, take_over, link, topics, alias).blockers[0]
    mm2.notes(160)
    assert run(source, target, take_over, link, topics, alias, is_dry_run=True).exit_code == 0


def test_where_the_source_was_made_anew_since_a_take_over_what_is_advised_works(source: str, target: str) -> None:
    """Its records are those that MirrorMaker 2, and the link, have copied: of a backup, under another topic id."""
    topic = link = alias = "taken-restored"
    topics, goes_on = LinkTopics.of(topic), MirrorPolicy(on_loss=LossPolicy.CONTINUE)
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(target, topic, 5, first=9_000)
    append_records(source, topic, 100)
    MirrorMaker2(source, target, alias, topic).copies(0, 100, noted=60)
    run(source, target, take_over, link, topics, alias, offsets="translated")
    append_records(source, topic, 20, first=100)
    mirror(source, target, topic, link, is_translated=True)
    delete_topic(source, topic)
    create_topic(source, topic)
    append_records(source, topic, 150)
    with pytest.raises(OptionError, match="copies into this target already"):
        run(source, target, take_over, link, topics, alias, offsets="translated")
    (told,) = run(source, target, plan_everything, link, topics, policy=goes_on).refusals
    assert "run tolerant-kafka take-over" not in told and "take-over does not help there" in told
    with pytest.raises(TargetDivergedError, match="take-over does not help there"):
        mirror(source, target, topic, link, is_translated=True, policy=goes_on)

    assert f"delete {offsets_topic(alias)} there" in told  # all of it again
    delete_topic(target, offsets_topic(alias))
    mirror(source, target, topic, link, is_translated=True, policy=goes_on)
    assert values(target, topic)[5:] == [*range(120), *range(150)]
    assert "delete the topic there and mirror it under another link name" in told  # once
    delete_topic(target, topic)
    mirror(source, target, topic, f"{link}-2", is_translated=True)
    assert values(target, topic) == list(range(150))
