"""Producers with `acks="mirrored"`: a record is complete once the standby has it, and the loss of its cluster loses none of those."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from support.mirror_link import (
    append_records,
    consume,
    create_topic,
    delete_records,
    delete_topic,
    ends,
    failed_over,
    mirror,
    promoted,
)
from tolerant_client import KafkaProducer
from tolerant_client.errors import NotMirroredError, OptionError
from tolerant_client.mirror.batches.gaps import FILLER
from tolerant_client.mirror.batches.losses import LossPolicy, MirrorPolicy
from tolerant_client.stock.client_metrics import GROUP, UNMIRRORED
from tolerant_client.testing import Drop, FaultProxy, KafkaCluster


@pytest.fixture
def mirrored(target: str) -> Iterator[Callable[..., KafkaProducer]]:
    made: list[KafkaProducer] = []

    def producer(source: str, link: str, **options: Any) -> KafkaProducer:
        standby = {"bootstrap_servers": target}
        made.append(
            KafkaProducer(
                **{"bootstrap_servers": source, "standby": standby, "link": link, "acks": "mirrored"} | options
            )
        )
        return made[-1]

    yield producer
    for one in made:
        one.close(timeout=20)


def copied(source: str, target: str, name: str, config: dict[str, str] | None = None) -> None:
    """A topic with a record, which a link of the same name has copied."""
    create_topic(source, name, 1, config)
    append_records(source, name, 1)
    mirror(source, target, name, name)


def acknowledged_by_source(source: str, topic: str, end: int) -> None:
    """Waits until the source has the records below `end`, and a moment more."""
    deadline = time.monotonic() + 60
    while ends(source, topic)[0] < end:
        assert time.monotonic() < deadline, "it is not written"
        time.sleep(0.05)
    time.sleep(0.3)


def values_of(servers: str, topic: str) -> dict[int, bytes]:
    """The values by offset, without filler."""
    found = consume(servers, topic, 1, 1 << 30)[0]
    return {offset: value for offset, _, _, value, headers in found if all(name != FILLER for name, _ in headers)}


def unmirrored(producer: KafkaProducer) -> int:
    return int(producer.metrics()[GROUP][UNMIRRORED])


@pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}])
def test_a_record_is_complete_when_the_standby_has_it(
    source: str, target: str, mirrored: Callable[..., KafkaProducer], config: dict[str, str]
) -> None:
    name = f"mirrored-acks-{len(config)}"
    copied(source, target, name, config)
    producer = mirrored(source, name)
    sent = [producer.send(name, b"%d" % n) for n in range(3)]
    acknowledged_by_source(source, name, 4)
    assert not any(one.is_done for one in sent) and unmirrored(producer) == 3
    with pytest.raises(KafkaTimeoutError):
        producer.flush(timeout=0.2)
    later = producer.send(name, b"later")
    acknowledged_by_source(source, name, 5)
    mirror(source, target, name, name)
    assert [one.get(10).offset for one in (*sent, later)] == [1, 2, 3, 4]
    assert not unmirrored(producer)
    producer.flush(timeout=10)


def test_a_record_that_the_standby_does_not_get_fails_in_time_and_is_not_sent_again(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-late"
    copied(source, target, name)
    producer = mirrored(source, name, mirrored_timeout_ms=500)
    with pytest.raises(
        NotMirroredError, match="late-0: the record is written on its own cluster at offset 1"
    ) as failed:
        producer.send(name, b"late").get(10)
    assert failed.value.offset == 1 and not unmirrored(producer)
    failed_over(target, name)
    producer.send(name, b"after").get(20)
    assert sorted(values_of(target, name).values())[-1] == b"after" and b"late" not in values_of(target, name).values()


def test_at_a_move_nothing_that_is_held_is_lost_and_the_order_stays(
    kafka_cluster: KafkaCluster, source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-moved"
    copied(source, target, name)
    with FaultProxy(kafka_cluster) as proxy:
        producer = mirrored(proxy.bootstrap_servers, name)
        sent = [producer.send(name, b"copied")]
        acknowledged_by_source(source, name, 2)
        mirror(source, target, name, name)
        for n in range(2):
            sent.append(producer.send(name, b"left-%d" % n))
            acknowledged_by_source(source, name, 3 + n)
        proxy.faults = [Drop(api="Produce")]
        sent.append(producer.send(name, b"doubt"))
        acknowledged_by_source(source, name, 5)
        sent.append(producer.send(name, b"waits"))
        assert not any(one.is_done for one in sent[1:])
        failed_over(target, name)
        offsets = [one.get(20).offset for one in sent]
        assert producer.send(name, b"acks=all").get(20).offset > offsets[-1]
    there = values_of(target, name)
    assert offsets == sorted(offsets) and offsets[0] == 1
    assert [there[offset] for offset in offsets] == [b"copied", b"left-0", b"left-1", b"doubt", b"waits"]
    assert len(there) == 7, "none is there twice"


def test_all_that_was_acknowledged_survives_the_loss_of_its_cluster(
    target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-killed"
    with KafkaCluster(heap="320m") as lost:
        source = lost.bootstrap_servers
        copied(source, target, name)
        producer = mirrored(source, name)
        sent: list[Any] = []
        is_over = threading.Event()

        def write() -> None:
            while not is_over.wait(0.001):
                sent.append(producer.send(name, b"%d" % len(sent)))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(3):
                time.sleep(0.2)
                mirror(source, target, name, name)
            time.sleep(0.2)
            lost.kill(1)
            time.sleep(0.3)
            before = sum(one.is_done for one in sent)
            failed_over(target, name)
            time.sleep(1)
        finally:
            is_over.set()
            writer.join()
        assert 0 < before < len(sent)
        places = [one.get(20).offset for one in sent]
    there = values_of(target, name)
    assert places == sorted(set(places))
    assert [there[place] for place in places] == [b"%d" % n for n in range(len(places))]
    assert len(there) == len(places) + 1, "none is there twice"
    delete_topic(target, name)


def test_what_the_mirror_leaves_out_is_not_mirrored(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-left-out"
    copied(source, target, name)
    producer = mirrored(source, name)
    sent = [producer.send(name, b"%d" % n) for n in range(2)]
    acknowledged_by_source(source, name, 3)
    sent.append(producer.send(name, b"deleted"))
    acknowledged_by_source(source, name, 4)
    delete_records(source, name, 4)
    sent.append(producer.send(name, b"after"))
    acknowledged_by_source(source, name, 5)
    mirror(source, target, name, name, policy=MirrorPolicy(on_loss=LossPolicy.CONTINUE))
    for lost in sent[:3]:
        with pytest.raises(NotMirroredError, match="the standby has something else at its offset"):
            lost.get(20)
    assert sent[3].get(20).offset == 4 and values_of(target, name)[4] == b"after"


def test_records_of_others_acknowledge_nothing(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-early"
    copied(source, target, name)
    producer = mirrored(source, name)
    sent = [producer.send(name, b"ours-%d" % n) for n in range(3)]
    acknowledged_by_source(source, name, 4)
    append_records(target, name, 5)  # an application that has moved too early
    with pytest.raises(NotMirroredError, match="something else at its offset"):
        sent[0].get(20)


def test_a_close_that_may_not_wait_leaves_the_producer_following(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-close"
    copied(source, target, name)
    producer = mirrored(source, name)
    sent = producer.send(name, b"held")
    acknowledged_by_source(source, name, 2)
    with pytest.raises(KafkaTimeoutError):
        producer.close(timeout=0.2)
    mirror(source, target, name, name)
    assert sent.get(10).offset == 1
    producer.close(timeout=10)


def test_other_records_at_the_same_offset_are_no_copy(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-others"
    copied(source, target, name)
    append_records(target, name, 5)
    with pytest.raises(NotMirroredError, match="the standby has something else at its offset"):
        mirrored(source, name).send(name, b"ours").get(20)


def test_a_topic_that_the_link_does_not_copy_is_told_at_once(
    source: str, target: str, mirrored: Callable[..., KafkaProducer]
) -> None:
    name = "mirrored-acks-outside"
    copied(source, target, name)
    create_topic(source, f"{name}-own", 1)
    with pytest.raises(NotMirroredError, match=f"the link does not copy {name}-own"):
        mirrored(source, name).send(f"{name}-own", b"x").get(10)


def test_after_the_promotion_it_is_acks_all(source: str, target: str, mirrored: Callable[..., KafkaProducer]) -> None:
    name = "mirrored-acks-promoted"
    copied(source, target, name)
    promoted(source, target, name)
    at = mirrored(source, name).send(name, b"x").get(20).offset
    assert values_of(target, name)[at] == b"x"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"enable_idempotence": False}, "needs an idempotent producer"),
        ({"mirrored_timeout_ms": 0}, "give milliseconds above 0"),
        ({"mirrored_timeout_ms": "soon"}, "give milliseconds above 0"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(
    source: str, target: str, mirrored: Callable[..., KafkaProducer], options: dict[str, Any], remedy: str
) -> None:
    name = "mirrored-acks-refused"
    if not ends(source, name)[0] > 0:
        copied(source, target, name)
    with pytest.raises(OptionError, match=remedy):
        mirrored(source, name, **options)


def test_without_a_link_nothing_can_be_mirrored(source: str) -> None:
    with pytest.raises(OptionError, match="needs standby and link"):
        KafkaProducer(bootstrap_servers=source, acks="mirrored")
