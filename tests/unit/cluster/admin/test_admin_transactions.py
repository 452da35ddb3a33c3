"""Which producer of a partition the link continues as, and the markers that it writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.protocol.producer import WriteTxnMarkersResponse
from kafka.structs import TopicPartition

from tolerant_client.cluster.admin.transactions import ProducerEntry, link_entry, write_abort_markers

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


MARKERS_REQUEST = bytes.fromhex(
    "00000069 001b0001 0000002a 0002 6d65 00"  # size, api key and version, correlation id, client id, no tags
    "04"
    "4000000000000000 0005 00 02 07 6f7264657273 02 00000003 00 00000000 00"
    "4000000000000000 0006 00 02 07 6f7264657273 02 00000003 00 00000000 00"
    "4000000000000001 0000 00 02 07 6f7264657273 02 00000003 00 00000000 00"
    "00"
)


class Leader:
    """A cluster whose one broker responds with two codes, one for each producer id."""

    def lane(self, purpose: str, node_id: int) -> str:
        return f"{purpose}-{node_id}"

    async def send(self, request: Any, node_id: str) -> Any:
        assert node_id == "markers-1"
        request.API_VERSION = 1
        request.with_header(correlation_id=42, client_id="me")
        self.sent = bytes(request.encode(framed=True, header=True))
        body = b"\3" + b"".join(
            producer + b"\2\7orders\2\0\0\0\3" + code + b"\0\0\0"
            for producer, code in ((b"\x40" + bytes(7), b"\0\0"), (b"\x40" + bytes(6) + b"\1", b"\0\x2f"))
        )
        return WriteTxnMarkersResponse.decode(body + b"\0", version=1)


def test_markers_are_written_as_the_message_definition_says_and_their_codes_read() -> None:
    leader: Any = Leader()
    markers = [(1 << 62, 5), (1 << 62, 6), ((1 << 62) + 1, 0)]
    codes = asyncio.run(write_abort_markers(leader, 1, TopicPartition("orders", 3), markers))
    assert leader.sent == MARKERS_REQUEST and codes == {47}
