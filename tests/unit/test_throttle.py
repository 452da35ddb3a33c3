"""The token bucket of a link: never faster than it may be, no slower than it can be."""

from __future__ import annotations

import pytest

from tolerant_client.mirror.link.throttle import BURST_S, TokenBucket


def fetched(bucket: TokenBucket, size: int, seconds: float) -> int:
    """Bytes that come in a time, in answers of `size`."""
    now, total = 0.0, 0
    while now < seconds:
        bucket.take(size, now)
        total += size
        now = max(now + 0.001, bucket.free_at)
    return total


def test_without_a_rate_nothing_is_held_back() -> None:
    bucket = TokenBucket()
    bucket.take(10**12, 5.0)
    assert bucket.wait_s(5.0) == 0 and bucket.answer_bytes(24 << 20) == 24 << 20


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


def test_answers_are_as_small_as_the_rate_and_never_tiny() -> None:
    bucket = TokenBucket()
    bucket.set_rate(4_000_000, 0.0)
    assert bucket.answer_bytes(24 << 20) == 1_000_000
    bucket.set_rate(1, 0.0)
    assert bucket.answer_bytes(24 << 20) == 16 << 10
    assert bucket.answer_bytes(1000) == 1000
