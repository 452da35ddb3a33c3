"""Inherited clients on a real broker: no record is taken for another process's, no position is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from support.mirror_link import create_topic
from tolerant_client import KafkaConsumer
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

# argv: mode, address, topic.
PROGRAM = """\
import os, sys, time
from kafka import TopicPartition
mode, address, topic = sys.argv[1:]
if mode == "installed":
    import tolerant_client
    tolerant_client.install()
    from kafka import KafkaConsumer, KafkaProducer
else:
    from tolerant_client import KafkaConsumer, KafkaProducer
PATIENCE = 120

def identity(producer):
    return producer._transaction_manager.producer_id_and_epoch.producer_id

def produce(who):
    futures = [producer.send(topic, b"%s %d" % (who, n), partition=0) for n in range(200)]
    for future in futures:
        future.get(timeout=PATIENCE)

def read(consumer, count):
    found, deadline = [], time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, found
        for records in consumer.poll(timeout_ms=1000, max_records=count - len(found)).values():
            found += [record.offset for record in records]
    return found

def positions(consumer):
    return [consumer.position(partition) for partition in sorted(consumer.assignment())]

def fork(work):
    child = os.fork()
    if not child:
        work()
        sys.stdout.flush()
        sys.exit(0)
    return child

producer = KafkaProducer(bootstrap_servers=address, linger_ms=5)
place = TopicPartition(topic, 1)
for n in range(30):
    producer.send(topic, b"%d" % n, partition=1)
producer.flush()
consumer = KafkaConsumer(bootstrap_servers=address)
consumer.assign([place])
consumer.seek(place, 5)
assert read(consumer, 3) == [5, 6, 7]
member = KafkaConsumer(topic, bootstrap_servers=address, group_id=topic)
deadline = time.monotonic() + PATIENCE
while not member.assignment():
    assert time.monotonic() < deadline
    member.poll(timeout_ms=500)
member_id = member._coordinator._generation.member_id
first = identity(producer)

def child(number):
    def work():
        produce(b"child %d" % number)
        assert identity(producer) != first
        assert read(consumer, 4) == [8, 9, 10, 11]
        if not number:
            deadline = time.monotonic() + PATIENCE
            while not member.assignment():
                assert time.monotonic() < deadline
                member.poll(timeout_ms=500)
            assert member._coordinator._generation.member_id not in ("", member_id)
        sys.stdout.write(f"{identity(producer)}\\n")  # print() may write the line end by itself
        producer.close(), consumer.close(), member.close()
    return work

children = [fork(child(number)) for number in range(3)]
produce(b"parent")
consumer.seek(place, 20)
assert read(consumer, 2) == [20, 21]
waiting, deadline = set(children), time.monotonic() + PATIENCE
while waiting:
    assert time.monotonic() < deadline
    member.poll(timeout_ms=200)  # lets the group's new member in
    for process in list(waiting):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            assert status == 0, status
            waiting.remove(process)
assert identity(producer) == first
sys.stdout.write(f"{first}\\n")
produce(b"parent again")
producer.close(), consumer.close(), member.close()
"""


@pytest.mark.parametrize("mode", ["drop-in", "installed"])
def test_parent_and_three_children_produce_and_read_with_inherited_clients(
    mode: str, kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    servers, topic = kafka_cluster.bootstrap_servers, f"fork-{mode}"
    create_topic(servers, topic, partitions=2)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", "program.py", mode, servers, topic]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(set(done.stdout.split())) == 4, "a producer id was used by two processes"

    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=20_000)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    (end,) = consumer.end_offsets([partition]).values()
    found: Counter[bytes] = Counter()
    for record in consumer:
        found[record.value] += 1
        if record.offset + 1 == end:
            break
    consumer.close()
    writers = [b"parent", b"parent again", b"child 0", b"child 1", b"child 2"]
    assert found == Counter(b"%s %d" % (who, n) for who in writers for n in range(200))
