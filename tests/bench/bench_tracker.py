"""What the tracker and its binding cost: our drop-ins beside stock kafka-python, same broker, in turns.

    python tests/bench/bench_tracker.py [--records 1000000] [--rounds 3]

Prints wall and CPU seconds of this process for each round; the ratio of the CPU
seconds is the one to quote, because the broker shares the machine.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

warnings.filterwarnings("ignore", message="(read|open)_text is deprecated")

import kafka  # noqa: E402
from kafka.admin import NewTopic  # noqa: E402
from kafka.structs import TopicPartition  # noqa: E402

from tolerant_client import KafkaAdminClient, KafkaConsumer, KafkaProducer  # noqa: E402
from tolerant_client.testing import KafkaCluster  # noqa: E402

PARTITIONS = 4
PAYLOAD = b"x" * 100


def produce(client: Callable[..., Any], servers: str, topic: str, records: int) -> None:
    producer = client(bootstrap_servers=servers, batch_size=65_536, linger_ms=5)
    for n in range(records):
        producer.send(topic, PAYLOAD, partition=n % PARTITIONS)
    producer.flush()
    producer.close()


def consume(client: Callable[..., Any], servers: str, topic: str, records: int) -> None:
    consumer = client(bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest", max_poll_records=5000)
    consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
    seen = 0
    while seen < records:
        seen += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    consumer.close()


def timed(what: Callable[..., None], *args: Any) -> tuple[float, float]:
    wall, cpu = time.monotonic(), time.process_time()
    what(*args)
    return time.monotonic() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    n = options.records
    with KafkaCluster(heap="512m") as cluster:
        servers = cluster.bootstrap_servers
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics([NewTopic("read", PARTITIONS, 1), NewTopic("written", PARTITIONS, 1)])
        admin.close()
        produce(KafkaProducer, servers, "read", n)
        for what, topic, ours, stock, count in (
            (consume, "read", KafkaConsumer, kafka.KafkaConsumer, n),
            (produce, "written", KafkaProducer, kafka.KafkaProducer, n // 4),
        ):
            ratios = []
            for turn in range(options.rounds):
                pair = [ours, stock] if turn % 2 else [stock, ours]
                results = {client: timed(what, client, servers, topic, count) for client in pair}
                (our_wall, our_cpu), (wall, cpu) = results[ours], results[stock]
                ratios.append(our_cpu / cpu)
                print(
                    f"{what.__name__} {count} x 100 B: ours {our_wall:.2f} s wall {our_cpu:.2f} s CPU,"
                    f" stock {wall:.2f} s wall {cpu:.2f} s CPU, CPU ratio {ratios[-1]:.3f}",
                    flush=True,
                )
            print(f"{what.__name__}: median CPU ratio {sorted(ratios)[len(ratios) // 2]:.3f}", flush=True)


if __name__ == "__main__":
    main()
