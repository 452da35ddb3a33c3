"""Brokers that need a ZooKeeper (Kafka 0.8.2 to 3.x), one node each: for the message formats and protocols of old.

They end with the process that started them: each runs under a shell that reads a pipe.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tolerant_client.testing.artifacts import ClusterStartError, jars, java_executable
from tolerant_client.testing.node import HOST, free_ports, log_tail

# `read` ends when the pipe's other end is gone, however the test process ended.
_LEASH = """
exec 3<&0
"$@" &
process=$!
{ read -r _ <&3; kill -9 $process; } 2>/dev/null &
leash=$!
wait $process
kill $leash
"""
_START_TIMEOUT_S = 90.0
_LOG4J = """
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""


def zookeeper_kafka_jars(version: str) -> tuple[Path, ...]:
    """As artifacts.jars, for the broker and its ZooKeeper."""
    if version.startswith("1."):
        return jars(version, ("kafka_2.11", "kafka-log4j-appender"))  # the broker of 1.x itself names no log4j
    return jars(version, ("kafka_2.11" if version.startswith("0.") else "kafka_2.13",))


def require_zookeeper_kafka(version: str) -> None:
    """Skips the test where this version cannot be started here; in CI it fails."""
    try:
        java_executable()
        zookeeper_kafka_jars(version)
    except ClusterStartError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


class ZooKeeperKafka:
    """A broker of an old version with a ZooKeeper of its own, as a context manager.

    Raises ClusterStartError, with the end of the log, if one of the two does not serve.
    """

    def __init__(self, version: str, broker_config: Mapping[str, str] | None = None) -> None:
        self.version = version
        self._broker_config = dict(broker_config or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = Path()
        self._java: list[str] = []
        self._settings: dict[str, str] = {}
        self.port = 0

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def _address(self) -> dict[str, str]:
        if int(self.version.split(".")[0]) < 3:
            return {"port": str(self.port), "host.name": HOST}
        return {"listeners": f"PLAINTEXT://{HOST}:{self.port}"}

    @property
    def log_file(self) -> Path:
        return self._folder / "kafka.log"

    def __enter__(self) -> ZooKeeperKafka:
        classpath = os.pathsep.join(map(str, zookeeper_kafka_jars(self.version)))
        self._folder = Path(tempfile.mkdtemp(prefix="tolerant-kafka-old-"))
        zookeeper_port, self.port = free_ports(2)
        (self._folder / "log4j.properties").write_text(_LOG4J)
        settings = {
            "broker.id": "1",
            **self._address(),
            "zookeeper.connect": f"{HOST}:{zookeeper_port}",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.cleaner.dedupe.buffer.size": str(8 << 20),
            "controlled.shutdown.enable": "false",  # nobody is there to take over
        }
        if not self.version.startswith("0.8."):
            settings["log.retention.ms"] = "-1"  # records with the timestamps of years ago stay
        self._settings = settings
        self._java = [
            *(java_executable(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            f"-Dlog4j.configuration=file:{self._folder / 'log4j.properties'}",
            *("-Dzookeeper.admin.enableServer=false", "-cp", classpath),
        ]
        zookeeper = "org.apache.zookeeper.server.ZooKeeperServerMain"
        try:
            self._start("zookeeper", [*self._java, zookeeper, str(zookeeper_port), str(self._folder / "zookeeper")])
            self._wait("zookeeper", zookeeper_port)
            self._start_broker()
        except BaseException:
            self.close()
            raise
        return self

    def restart(self, broker_config: Mapping[str, str]) -> None:
        """Stops the broker as an administrator does, and starts it with more configuration, as for an upgrade."""
        broker = self._processes.pop()
        os.killpg(broker.pid, signal.SIGTERM)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            broker.poll()
            try:
                os.killpg(broker.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        assert broker.stdin is not None
        broker.stdin.close()
        self._broker_config.update(broker_config)
        self._start_broker()

    def _start_broker(self) -> None:
        settings = {**self._settings, **self._broker_config}
        (self._folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        self._start("kafka", [*self._java, "kafka.Kafka", str(self._folder / "server.properties")])
        self._wait("kafka", self.port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make_topic(self, topic: str) -> None:
        """Creates a topic of one partition, as a Metadata request does (v0), and waits for its leader."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._request(3, 0, struct.pack(">i", 1) + _string(topic))
            # One broker: node id, host, port.  One topic: error, name, partitions, each with an error first.
            if struct.unpack_from(">i", answer) == (1,):
                at = 4 + 4 + 2 + len(HOST) + 4 + 4
                answer = answer.ljust(at + 8 + len(topic) + 2, b"\xff")  # a topic that is not ready has no partition
                error, partition_error = struct.unpack_from(f">h{2 + len(topic) + 4}xh", answer, at)
                if error == partition_error == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"{topic} has no leader")

    def produce(self, topic: str, message_set: bytes, version: int) -> int:
        """Appends a message set to partition 0, acks=1; the base offset."""
        body = struct.pack(">hii", 1, 30_000, 1) + _string(topic) + struct.pack(">iii", 1, 0, len(message_set))
        answer = self._request(0, version, body + message_set)
        _, error_code, base_offset = struct.unpack_from(">ihq", answer, 4 + 2 + len(topic) + 4)
        assert error_code == 0, f"Kafka {self.version} answers a Produce to {topic} with error {error_code}"
        return int(base_offset)

    def _request(self, api_key: int, version: int, body: bytes) -> bytes:
        # Without a client id 0.9 fails in its own quotas.
        body = struct.pack(">hhi", api_key, version, 1) + _string("test") + body
        with socket.create_connection((HOST, self.port), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            stream = connection.makefile("rb")
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)[4:]

    def close(self) -> None:
        """Ends both processes and removes their folder; later calls do nothing."""
        while self._processes:
            process = self._processes.pop()
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str, command: Sequence[str]) -> None:
        with open(self._folder / f"{name}.log", "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", _LEASH, name, *command],
                    cwd=self._folder,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, port: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            try:
                socket.create_connection((HOST, port), timeout=2).close()
                return
            except OSError:
                time.sleep(0.1)
        raise ClusterStartError(
            f"The {name} of Kafka {self.version} does not serve; its log ends with:\n"
            + log_tail(self._folder / f"{name}.log")
        )


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
