"""The claims log on the target: who looks at it, and a process that claims there what it writes (claims.py says how)."""

from __future__ import annotations

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.legacy_records import iter_record_sets
from tolerant_client.mirror.link.claims import CLAIMS_TOPIC, Claimant, ClaimsLog, decode_claims
from tolerant_client.mirror.own_topic import create_own_topic, end_of, has_topic
from tolerant_client.raw import EARLIEST, RawCluster
from tolerant_client.record_batch import decode_records

_PARTITION = TopicPartition(CLAIMS_TOPIC, 0)
_CONFIG = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": "3600000",
    "segment.ms": "600000",
}


async def read_claims(target: RawCluster) -> ClaimsLog:
    """What the claims log of a target says now: its `claims` and `runs`; empty where no mirror ever claimed anything.

    Raises KafkaError, TopicAuthorizationFailedError among them.
    """
    log = ClaimsLog()
    if not await has_topic(target, CLAIMS_TOPIC):
        return log
    follower = Follower(target, log)
    await target.insist("reading the claims of mirrors", lambda: follower.read_to_end())
    return log


class Follower:
    """Reads the claims log in its order and hands every record to `log` once; on the event loop of `target`."""

    def __init__(self, target: RawCluster, log: ClaimsLog | Claimant) -> None:
        self.position = -1  # the next offset to be read
        self._target = target
        self._log = log

    async def read_to_end(self) -> None:
        """Reads what is there now; raises KafkaError."""
        end = await end_of(self._target, CLAIMS_TOPIC)
        await self.read_to(end)

    async def read_to(self, end: int) -> None:
        """Reads up to an offset."""
        while self.position < end:
            if not await self.follow(0) and self.position < end:
                await self._target.net.sleep(0.005)  # the high watermark is to come

    async def follow(self, max_wait_ms: int) -> bool:
        """Reads what is new, and waits for it so long at most; whether there was something.

        Raises OffsetOutOfRangeError where the log was made anew or cut: the caller begins anew.
        """
        if self.position < 0:
            self.position = (await self._target.list_offsets({_PARTITION: EARLIEST}))[_PARTITION]
        node = await self._target.leader(_PARTITION)
        (part,) = await self._target.fetch(node, {_PARTITION: self.position}, max_wait_ms=max_wait_ms)
        if part.error_code:
            raise Errors.for_code(part.error_code)(f"reading {CLAIMS_TOPIC}")
        before = self.position
        for header, batch in iter_record_sets(part.records, from_offset=self.position):
            for record in [] if header.is_control else decode_records(batch):
                found = decode_claims(record.key, record.value) if record.offset >= self.position else None
                if found is not None:
                    self._log.read(found, record.timestamp, header.partition_leader_epoch)
            self.position = max(self.position, header.next_offset)
        return self.position > before


async def create_claims_topic(target: RawCluster) -> None:
    """Makes the claims log where it is not there."""
    if not await has_topic(target, CLAIMS_TOPIC):
        await create_own_topic(target, CLAIMS_TOPIC, _CONFIG, insync_of_two=1)
