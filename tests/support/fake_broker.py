"""A broker in memory: decodes real request frames, keeps real logs, answers as it is told to.

- `FakeBroker.receive(data)` takes bytes as a socket would and returns the answers' frames.
- Produce with a producer id is de-duplicated over the last five batches, as brokers do
  (ProducerStateEntry.java), and refused out of order with error 45.
- No SASL mechanism is one that it knows; it offers others.
- A test spoils answers with `broker.spoil = function(name, frame) -> list of frames`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from kafka.errors import UnsupportedSaslMechanismError
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse
from kafka.protocol.schemas.fields.codecs import EncodeBufferPool

API_VERSIONS = {0: (0, 9), 1: (0, 11), 2: (0, 6), 3: (0, 9), 17: (0, 1), 18: (0, 3)}
_REQUESTS = {
    0: ProduceRequest,
    1: FetchRequest,
    2: ListOffsetsRequest,
    3: MetadataRequest,
    17: SaslHandshakeRequest,
    18: ApiVersionsRequest,
}

Spoil = Callable[[str, bytes], list[bytes]]

_LARGEST_ANSWER = 8 << 20


def set_correlation_id(frame: bytes, correlation_id: int) -> bytes:
    """The same answer under another correlation id."""
    return frame[:4] + struct.pack(">i", correlation_id) + frame[8:]


def correlation_id_of(frame: bytes) -> int:
    """The correlation id of an answer."""
    (correlation_id,) = struct.unpack_from(">i", frame, 4)
    return int(correlation_id)


def batch(producer_id: int, sequence: int, records: int = 1, payload: bytes = b"") -> bytes:
    """A v2 record batch as far as a broker's bookkeeping looks at it; its CRC is not computed."""
    header = struct.pack(
        ">qiibIhiqqqhii", 0, 49 + len(payload), -1, 2, 0, 0, records - 1, 0, 0, producer_id, 0, sequence, records
    )
    return header + payload


class FakeBroker:
    """One node; `requests` lists (name, version, correlation id) and `frames` the bytes as received."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, int]] = []
        self.frames: list[bytes] = []
        self.logs: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.spoil: Spoil = lambda name, frame: [frame]
        self.ignore: Callable[[str, bytes], bool] = lambda name, frame: False
        self.host, self.port = "fake", 9092
        self._buffer = bytearray()
        self._seen: dict[tuple[str, int, int], deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=5))
        self._next_sequence: dict[tuple[str, int, int], int] = {}

    def names(self) -> list[str]:
        """Names of the requests, in the order of arrival."""
        return [name for name, _, _ in self.requests]

    def receive(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Takes bytes; returns the frames to send back, spoiled ones included."""
        self._buffer += data
        answers: list[bytes] = []
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < 4 + size:
                break
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            answers += self._serve(frame)
        return answers

    def _serve(self, frame: bytes) -> list[bytes]:
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request_class = _REQUESTS[api_key]
        name = request_class.name.removesuffix("Request")
        self.requests.append((name, version, correlation_id))
        self.frames.append(frame)
        if self.ignore(name, frame):
            return []
        request = request_class.decode(frame, version=version, header=True)
        response = getattr(self, f"_answer_{name}")(request, version)
        if response is None:
            return []
        response.with_header(correlation_id=correlation_id)
        # kafka-python 3.0.0 does not make room for what follows a large field.
        EncodeBufferPool._get().ensure(_LARGEST_ANSWER)
        return self.spoil(name, response.encode(header=True, framed=True))

    def _answer_ApiVersions(self, request: Any, version: int) -> Any:
        key_class = ApiVersionsResponse.ApiVersion
        keys = [key_class(api_key=k, min_version=low, max_version=high) for k, (low, high) in API_VERSIONS.items()]
        return ApiVersionsResponse(version=version, error_code=0, api_keys=keys, throttle_time_ms=0)

    def _answer_SaslHandshake(self, request: Any, version: int) -> Any:
        offered = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        return SaslHandshakeResponse(
            version=version, error_code=UnsupportedSaslMechanismError.errno, mechanisms=offered
        )

    def _answer_Metadata(self, request: Any, version: int) -> Any:
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=self.host, port=self.port, rack=None)
        return MetadataResponse(version=version, brokers=[broker], cluster_id="fake", controller_id=1, topics=[])

    def _answer_ListOffsets(self, request: Any, version: int) -> Any:
        topic_class = ListOffsetsResponse.ListOffsetsTopicResponse
        part_class = topic_class.ListOffsetsPartitionResponse
        topics = [
            topic_class(
                name=topic.name,
                partitions=[
                    part_class(
                        partition_index=p.partition_index,
                        error_code=0,
                        timestamp=-1,
                        offset=len(self.logs[topic.name, p.partition_index]),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(version=version, throttle_time_ms=0, topics=topics)

    def _answer_Fetch(self, request: Any, version: int) -> Any:
        topic_class = FetchResponse.FetchableTopicResponse
        part_class = topic_class.PartitionData
        topics = [
            topic_class(
                topic=topic.topic,
                partitions=[
                    part_class(
                        partition_index=p.partition,
                        error_code=0,
                        high_watermark=len(self.logs[topic.topic, p.partition]),
                        records=b"".join(self.logs[topic.topic, p.partition][p.fetch_offset :]),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return FetchResponse(version=version, responses=topics)

    def _answer_Produce(self, request: Any, version: int) -> Any:
        topic_class = ProduceResponse.TopicProduceResponse
        part_class = topic_class.PartitionProduceResponse
        topics = []
        for topic in request.topic_data:
            parts = []
            for p in topic.partition_data:
                error_code, offset = self.append((topic.name, p.index), bytes(p.records))
                parts.append(part_class(index=p.index, error_code=error_code, base_offset=offset))
            topics.append(topic_class(name=topic.name, partition_responses=parts))
        if request.acks == 0:
            return None
        return ProduceResponse(version=version, responses=topics)

    def append(self, partition: tuple[str, int], records: bytes) -> tuple[int, int]:
        """Appends a batch as a leader would; (error code, offset)."""
        log = self.logs[partition]
        (producer_id,) = struct.unpack_from(">q", records, 43)
        if producer_id < 0:
            log.append(records)
            return 0, len(log) - 1
        (sequence,) = struct.unpack_from(">i", records, 53)
        (last_delta,) = struct.unpack_from(">i", records, 23)
        key = (*partition, producer_id)
        for known, offset in self._seen[key]:
            if known == sequence:
                return 0, offset
        if sequence != self._next_sequence.get(key, 0):
            return 45, -1
        log.append(records)
        self._next_sequence[key] = sequence + last_delta + 1
        self._seen[key].append((sequence, len(log) - 1))
        return 0, len(log) - 1


@contextlib.contextmanager
def serve(broker: FakeBroker, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves the broker on a real port, one thread a connection; yields host:port."""
    listener = socket.create_server(("127.0.0.1", 0))
    broker.host, broker.port = "127.0.0.1", listener.getsockname()[1]
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []
    lock = threading.Lock()

    def talk(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if tls is not None:
                client = tls.wrap_socket(client, server_side=True)
            open_sockets.append(client)
            buffered = bytearray()
            while data := client.recv(65536):
                buffered += data
                while len(buffered) >= 4 and len(buffered) >= 4 + struct.unpack_from(">i", buffered)[0]:
                    end = 4 + struct.unpack_from(">i", buffered)[0]
                    with lock:
                        answers = broker.receive(buffered[:end])
                    del buffered[:end]
                    for answer in answers:
                        client.sendall(answer)
        client.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=talk, args=(client,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"127.0.0.1:{broker.port}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for client in open_sockets:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
