"""All three clients in a program that gevent has patched: greenlets share them, and none holds the others up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.broker

pytest.importorskip("gevent")

# argv: bootstrap servers, topic, "drop-in" or "installed".
PROGRAM = """\
from gevent import monkey
monkey.patch_all()
import gevent, sys

servers, topic, mode = sys.argv[1:]
if mode == "installed":
    import tolerant_client
    tolerant_client.install()
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
else:
    from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.005)
ticking = gevent.spawn(tick)

admin = KafkaAdminClient(bootstrap_servers=servers)
admin.create_topics([NewTopic(topic, 2, 1)])
admin.close()

producer = KafkaProducer(bootstrap_servers=servers)  # idempotent
def produce(name):
    for number in range(50):
        producer.send(topic, f"{name}-{number}".encode(), partition=name % 2).get(timeout=60)
producing = [gevent.spawn(produce, name) for name in range(4)]

consumer = KafkaConsumer(topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest")
seen = []
with gevent.Timeout(120):
    while len(seen) < 200:
        for records in consumer.poll(timeout_ms=200).values():
            seen += [record.value.decode() for record in records]
gevent.joinall(producing, raise_error=True)
consumer.close()
producer.close()
ticking.kill()
for name in range(4):
    assert [value for value in seen if value.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(50)]
assert ticks > 10, ticks
print("ended well")
"""


@pytest.mark.parametrize("mode", ["drop-in", "installed"])
def test_greenlets_share_the_clients(kafka_cluster: KafkaCluster, mode: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", "program.py", kafka_cluster.bootstrap_servers, f"gevent-{mode}", mode]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr[-4000:]
