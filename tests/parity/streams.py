"""Streaming scenarios: the same steps for a query on either source, micro-batch by micro-batch.

In options and steps a name such as @a is a topic of the scenario's own, made for it and read by both queries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from parity.scenario import JVM, OURS, QUICK, Failed, failure, sorted_rows, unlike_failures
from parity.topics import Filler
from spark_integration.progress import offsets_behind_latest

TIMEOUT_S = 120


@dataclass(frozen=True)
class Append:
    """Records from..until of parity.topics.step."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Grow:
    topic: str
    partitions: int


@dataclass(frozen=True)
class Make:
    topic: str
    partitions: int = 1


@dataclass(frozen=True)
class Delete:
    topic: str


@dataclass(frozen=True)
class Cut:
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Go:
    """A whole run of the query, on from its checkpoint: what is there now, by Trigger.AvailableNow or Once."""

    options: Mapping[str, str] = field(default_factory=dict)
    trigger: str = "availableNow"


@dataclass(frozen=True)
class Fail:
    """A run whose first micro-batch is planned and read, and fails before it is committed."""


@dataclass(frozen=True)
class Start:
    """Starts the query with a processing time trigger; Drain and Stop are its later steps."""

    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drain:
    """Until all that is there has been processed."""


@dataclass(frozen=True)
class Stop:
    pass


Step = Append | Grow | Make | Delete | Cut | Go | Fail | Start | Drain | Stop


@dataclass(frozen=True)
class StreamScenario:
    """`topics` are the scenario's own, by number of partitions; `fails` is as that of Scenario."""

    name: str
    options: Mapping[str, str]
    steps: tuple[Step, ...] = (Go(),)
    topics: Mapping[str, int] = field(default_factory=dict)
    fails: str | None = None


@dataclass
class Run:
    """What came of a scenario on one source."""

    batches: list[dict[str, Any]] = field(default_factory=list)
    failed: Failed | None = None
    log: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        told = [f"{len(b['rows'])} rows {b['startOffset']} -> {b['endOffset']}" for b in self.batches]
        return "; ".join([*told, *([str(self.failed)] if self.failed else [])])


class Query:
    """A query on one source through all the steps of a scenario."""

    def __init__(self, spark: Any, servers: str, source: str, options: Mapping[str, str], folder: Path) -> None:
        self.spark, self.source, self.folder = spark, source, folder
        self.options = {"kafka.bootstrap.servers": servers, **QUICK, **options}
        self.run = Run()
        self._rows: dict[int, Any] = {}
        self._query: Any = None
        self._fails = False

    def start(self, more: Mapping[str, str], **trigger: Any) -> None:
        frame = self.spark.readStream.format(self.source).options(**self.options).options(**more).load()

        def take(batch: Any, number: int) -> None:
            try:
                self._rows[number] = sorted_rows(batch)
                if self._fails:
                    raise RuntimeError("as it should")
            except Exception as error:
                # What Spark makes of it is a sentence about foreachBatch.
                self.run.failed = failure(error)
                raise

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder))
        self._query = writer.trigger(**trigger).start()

    def go(self, step: Go) -> None:
        self.start(step.options, **{step.trigger: True})
        assert self._query.awaitTermination(TIMEOUT_S), f"{self.source}: the query did not end"
        self._note()

    def fail(self) -> None:
        self._fails = True
        with pytest.raises(StreamingQueryException, match="as it should"):
            self.go(Go())
        self._fails, self._query, self.run.failed = False, None, None
        for number, rows in self._rows.items():
            self.run.batches.append({"batchId": number, "rows": rows, "startOffset": None, "endOffset": "failed"})
        self._rows.clear()

    def drain(self) -> None:
        self._query.processAllAvailable()

    def stop(self) -> None:
        if self._query is not None:
            query, self._query = self._query, None
            query.stop()
            self._note(query)

    def _note(self, query: Any = None) -> None:
        query = query or self._query
        self._query = None
        for progress in query.recentProgress:
            told = json.loads(progress.json) if hasattr(progress, "json") else progress
            source = told["sources"][0]
            if told["batchId"] in self._rows:
                self.run.batches.append(
                    {
                        "batchId": told["batchId"],
                        "rows": self._rows.pop(told["batchId"]),
                        "numInputRows": source["numInputRows"],
                        **{
                            name: _partitions(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset")
                        },
                        # A Python source has no place for metrics: they are made of the offsets.
                        "metrics": (source.get("metrics") or {})
                        if self.source == JVM
                        else offsets_behind_latest(source),
                    }
                )


def _partitions(offsets: Any) -> Any:
    """Without the names that have none: topic ids, which Spark's own source does not keep."""
    return {name: parts for name, parts in offsets.items() if parts} if isinstance(offsets, dict) else offsets


def run_stream(
    spark: Any, filler: Filler, both: Callable[..., Any], scenario: StreamScenario, prefix: str, folder: Path
) -> dict[str, Run]:
    """Runs the scenario on both sources at once; the topics' changes happen between their steps."""

    def named(value: str) -> str:
        return value.replace("@", prefix)

    for topic, partitions in scenario.topics.items():
        filler.create(named(topic), partitions)
    options = {name: named(value) for name, value in scenario.options.items()}
    queries = {source: Query(spark, filler.servers, source, options, folder / source) for source in (JVM, OURS)}
    try:
        for step in scenario.steps:
            _change(filler, step, named)
            both(lambda source: _act(queries[source], step, named))
    finally:
        both(lambda source: _act(queries[source], Stop(), named))
    for source, query in queries.items():
        query.run.log = offsets_log(folder / source)
    return {source: query.run for source, query in queries.items()}


def _change(filler: Filler, step: Step, named: Callable[[str], str]) -> None:
    match step:
        case Append(topic, partition, start, end):
            filler.steps(named(topic), partition, range(start, end))
        case Grow(topic, partitions):
            filler.grow(named(topic), partitions)
        case Make(topic, partitions):
            filler.create(named(topic), partitions)
        case Delete(topic):
            filler.delete(named(topic))
        case Cut(topic, partition, offset):
            filler.cut(named(topic), partition, offset)


def _act(query: Query, step: Step, named: Callable[[str], str]) -> None:
    """A step of the query; one that failed takes no further steps but Stop."""
    if query.run.failed is not None and not isinstance(step, Stop):
        return
    try:
        match step:
            case Go(options, trigger):
                query.go(Go({name: named(value) for name, value in options.items()}, trigger))
            case Fail():
                query.fail()
            case Start(options):
                query.start({name: named(value) for name, value in options.items()}, processingTime="100 milliseconds")
            case Drain():
                query.drain()
            case Stop():
                query.stop()
    except Exception as error:  # its kind is what is compared
        query.run.failed = query.run.failed or failure(error)


def offsets_log(checkpoint: Path) -> list[Any]:
    """What the checkpoint's offsets/ folder says, batch by batch."""
    found = []
    for file in sorted((p for p in (checkpoint / "offsets").glob("*") if p.name.isdigit()), key=lambda p: int(p.name)):
        version, _, source = file.read_text().splitlines()
        found.append((int(file.name), version, _partitions(json.loads(source))))
    return found


def differences(scenario: StreamScenario, jvm: Run, ours: Run) -> list[str]:
    """What is not alike, a line each."""
    if (jvm.failed is None) != (scenario.fails is None):
        return [f"the JVM's source: {jvm}"]
    if (jvm.failed is None) != (ours.failed is None) or len(jvm.batches) != len(ours.batches):
        return [f"the JVM's source: {jvm}", f"ours: {ours}"]
    found = []
    if jvm.failed is not None and ours.failed is not None:
        found += unlike_failures(jvm.failed, ours.failed, scenario.fails or "")
    for one, other in zip(jvm.batches, ours.batches, strict=True):
        for name in one:
            if one[name] != other[name]:
                found.append(f"batch {one['batchId']}: {name}: {str(one[name])[:300]} | {str(other[name])[:300]}")
    if jvm.log != ours.log:
        found.append(f"offsets log: {jvm.log} | {ours.log}")
    return found
