"""Which producer of a partition the link goes on as."""

from __future__ import annotations

import pytest

from tolerant_client.cluster.admin.transactions import ProducerEntry, link_entry

LINK = 4711


def entry(
    producer_id: int,
    last_sequence: int = 9,
    last_timestamp: int = 5,
    coordinator_epoch: int = -1,
    transaction_start: int = -1,
) -> ProducerEntry:
    return ProducerEntry(producer_id, 0, last_sequence, last_timestamp, coordinator_epoch, transaction_start)


def test_the_link_goes_on_as_itself_though_others_wrote_later() -> None:
    assert link_entry([entry(1, last_timestamp=99), entry(LINK)], LINK, {1, LINK}) == entry(LINK)


def test_without_an_entry_of_its_id_it_goes_on_as_the_former_id_of_its_own_that_wrote_last() -> None:
    known = [entry(1, last_timestamp=1), entry(2, last_timestamp=2), entry(3, last_timestamp=3)]
    assert link_entry(known, LINK, {1, 2, LINK}) == entry(2, last_timestamp=2)


def test_what_others_wrote_is_never_gone_on_with() -> None:
    assert link_entry([entry(1), entry(2)], LINK, {LINK}) is None


@pytest.mark.parametrize(
    "other",
    [entry(1, last_sequence=-1), entry(1, coordinator_epoch=0), entry(1, transaction_start=40)],
    ids=["wrote only markers", "was in a transaction", "its first transaction is open"],
)
def test_producers_that_fill_gaps_are_not_the_link(other: ProducerEntry) -> None:
    assert link_entry([other], LINK, {1, LINK}) is None
    assert link_entry([other, entry(LINK, last_timestamp=0)], LINK, {1, LINK}) == entry(LINK, last_timestamp=0)
