"""The token bucket of a link: never faster than its rate, and no slower than it must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.mirror.engine.throttle import BURST_S, TokenBucket
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.state.link_control import NO_LIMIT, LinkControl


def fetched(bucket: TokenBucket, size: int, seconds: float) -> int:
    """Bytes that arrive in a time, in responses of `size`."""
    now, total = 0.0, 0
    while now < seconds:
        bucket.take(size, now)
        total += size
        now = max(now + 0.001, bucket.free_at)
    return total


def test_without_a_rate_nothing_is_held_back() -> None:
    bucket = TokenBucket()
    bucket.take(10**12, 5.0)
    assert bucket.wait_s(5.0) == 0 and bucket.response_bytes(24 << 20) == 24 << 20


@pytest.mark.parametrize("size", [100, 10_000, 3_000_000])
def test_a_rate_is_kept_whatever_comes_at_once(size: int) -> None:
    bucket = TokenBucket()
    bucket.set_rate(100_000, 0.0)
    total = fetched(bucket, size, 60)
    assert 100_000 * 60 - size <= total <= 100_000 * (60 + BURST_S) + size


def test_what_was_not_used_for_long_is_not_kept() -> None:
    bucket = TokenBucket()
    bucket.set_rate(1000, 0.0)
    bucket.take(1000, 100.0)
    assert bucket.wait_s(100.0) == pytest.approx(1 - BURST_S)


def test_a_debt_is_paid_at_the_new_rate() -> None:
    bucket = TokenBucket()
    bucket.set_rate(1000, 0.0)
    bucket.take(10_000, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(10)
    bucket.set_rate(10_000, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(1)
    bucket.set_rate(None, 0.0)
    assert bucket.wait_s(0.0) == 0


def test_the_same_rate_again_forgives_no_debt() -> None:
    bucket = TokenBucket()
    bucket.set_rate(1000, 0.0)
    bucket.take(5_000, 0.0)
    bucket.set_rate(1000, 2.0)
    assert bucket.wait_s(2.0) == pytest.approx(3)


def test_responses_are_as_small_as_the_rate_and_never_tiny() -> None:
    bucket = TokenBucket()
    bucket.set_rate(4_000_000, 0.0)
    assert bucket.response_bytes(24 << 20) == 1_000_000
    bucket.set_rate(1, 0.0)
    assert bucket.response_bytes(24 << 20) == 16 << 10
    assert bucket.response_bytes(1000) == 1000


@pytest.mark.parametrize("offsets", [identical_offsets(7), translated_offsets()], ids=["identical", "translated"])
@pytest.mark.parametrize(
    ("said", "response"),
    [(None, 1_000_000), (4_000_000, 500_000), (NO_LIMIT, 24 << 20)],  # a quarter of a second's worth, of two copiers
)
def test_a_copier_takes_the_rate_it_was_started_with_unless_the_operator_says_another(
    offsets: Any, said: int | None, response: int
) -> None:
    with Cluster({"bootstrap_servers": "a:9092"}, name="source") as source:
        target = Cluster({"bootstrap_servers": "b:9092"}, source.net, name="target")
        copier = LinkCopier(source, target, offsets, bytes_per_s=8_000_000, shares=2)
        copier.control.value = LinkControl(bytes_per_s=said)
        copier.obey()
        assert copier.link.bucket.response_bytes(24 << 20) == response
        assert copier.link.emptiness._bucket is copier.link.bucket
        target.close()


@pytest.mark.parametrize(("given", "rate"), [(None, None), (5_000, 5_000)])
def test_the_rate_and_the_generation_of_a_link_go_through_spark_to_its_tasks(
    tmp_path: Path, given: int | None, rate: int | None
) -> None:
    pytest.importorskip("pyspark")
    from spark_integration.mirror.mirror_job import start
    from spark_integration.mirror.stream_ranges import RangesStreamWriter
    from tolerant_client.ops.service.mirror_settings import MirrorSettings

    query = MagicMock()  # each of its calls makes it again, as a reader's and a writer's do
    for step in ("format", "option", "options", "load", "repartition", "queryName", "trigger"):
        getattr(query, step).return_value = query
    query.writeStream = query
    settings = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders", bytes_per_s=given)
    start(settings, PreparedLink(7, (), {}, generation=3), MagicMock(readStream=query), tmp_path)
    writer = RangesStreamWriter(query.options.call_args.kwargs)
    assert (writer._link.bytes_per_s, writer._link.generation) == (rate, 3)


def test_a_copier_of_translated_offsets_knows_its_rate_before_a_second_has_passed() -> None:
    with Cluster({"bootstrap_servers": "a:9092"}, name="source") as source:
        target = Cluster({"bootstrap_servers": "b:9092"}, source.net, name="target")
        copier = LinkCopier(source, target, translated_offsets(), bytes_per_s=4_000_000)
        copier.strategy.partitions[TopicPartition("orders", 0)] = MagicMock(wants_more=False)  # type: ignore[index]

        async def look() -> LinkControl:
            return LinkControl()

        copier.control.refresh = look  # type: ignore[method-assign]
        loops: list[Any] = []
        copier.link.tasks.spawn = lambda step: loops.append(step())  # type: ignore[method-assign, assignment]
        copier._every_second(copier._follow_control)
        (following,) = loops
        following.send(None)  # up to its first pause
        assert copier.link.bucket.response_bytes(24 << 20) == 1_000_000
        following.close()
        target.close()
