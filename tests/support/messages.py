"""kafka-python's requests and answers from plain dicts, and as a broker would send them."""

from __future__ import annotations

import importlib
from typing import Any

from kafka.protocol.api_message import ApiMessage
from kafka.record.default_records import DefaultRecordBatchBuilder

from tolerant_client.tracker.rules.requests import KafkaRequest, adapt

for _module in ("admin", "consumer", "metadata", "producer", "sasl"):
    importlib.import_module(f"kafka.protocol.{_module}")


def _classes(kind: str) -> dict[str, Any]:
    found = [c for c in ApiMessage.__subclasses__() if c.type == kind and c._class_version is None]
    return {c.name.removesuffix(kind.title()): c for c in found}


REQUESTS, ANSWERS = _classes("request"), _classes("response")


def build(kind: Any, values: dict[str, Any], **more: Any) -> Any:
    """A message or a structure of it; nested dicts become kafka-python's own structures."""
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = [build(kind._struct.fields[name].data_class, item) for item in value]
        more[name] = value
    return kind(**more)


def asked(api: str, version: int, **values: Any) -> KafkaRequest:
    """A request as the tracker gets it."""
    request = adapt(build(REQUESTS[api], values, version=version))
    assert isinstance(request, KafkaRequest)
    return request


def answer(api: str, version: int, **values: Any) -> memoryview:
    """An answer's body, as a broker sends it behind the correlation id."""
    message = build(ANSWERS[api], values, version=version)
    is_flexible = ANSWERS[api].flexible_version_q(version) and api != "ApiVersions"
    return memoryview((b"\0" if is_flexible else b"") + bytes(message.encode()))


def batch(producer_id: int) -> bytes:
    """One record batch of one record; -1 is a plain producer."""
    builder = DefaultRecordBatchBuilder(2, 0, False, producer_id, 0, 0, 1000)
    builder.append(0, 1, None, b"value", [])
    return bytes(builder.build())


def produce(version: int = 9, **records: bytes | None) -> KafkaRequest:
    """A Produce request with one batch for partition 0 of each topic."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": value}]} for topic, value in records.items()]
    return asked("Produce", version, transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)


def fetch(version: int, session_id: int, epoch: int) -> KafkaRequest:
    """A Fetch request for two partitions of topic "a"."""
    topics = [{"topic": "a", "partitions": [{"partition": 0}, {"partition": 1}]}]
    return asked("Fetch", version, max_wait_ms=400, session_id=session_id, session_epoch=epoch, topics=topics)


def tp(
    topic: str,
    *partitions: int,
    name: str = "name",
    inner: str = "partitions",
    index: str = "partition_index",
    **more: Any,
) -> dict[str, Any]:
    """A topic with structures for its partitions; `more` is in each of them."""
    return {name: topic, inner: [{index: p, **more} for p in partitions]}


def numbers(topic: str, *partitions: int, name: str = "name", inner: str = "partitions") -> dict[str, Any]:
    """A topic with bare partition numbers."""
    return {name: topic, inner: list(partitions)}
