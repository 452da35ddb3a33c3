"""How a mirror ends whose Spark does not start, or dies under it; no Spark, no broker."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JNetworkError
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_integration.mirror import mirror_job
from spark_integration.mirror.supervisor import run_links
from tolerant_client.errors import SourceTruncatedError, TolerantClientError
from tolerant_client.mirror.engine.prepare import PreparedLink
from tolerant_client.ops.service.mirror_settings import MirrorSettings
from tolerant_client.ops.service.run_claim import RunClaim

GONE = [
    PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", {}),
    ConnectionRefusedError(111, "Connection refused"),
    Py4JNetworkError("Answer from Java side is empty\n  at a line\n  at another"),
]


class Spark:
    """A session, and its query, whose JVM ends at one of its steps; `steps` are those that were reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_at: str, error: Exception) -> None:
        self.steps: list[str] = []
        self._ends_at, self._error = ends_at, error
        monkeypatch.setattr(mirror_job, "spark_session", lambda *_, **__: self._step("session", self))
        monkeypatch.setattr(mirror_job.HeadStart, "start", lambda _: None)
        monkeypatch.setattr(mirror_job.HeadStart, "join", lambda *_: None)
        monkeypatch.setattr(mirror_job, "start", lambda *_: self._step("start", self))

    def _step(self, name: str, result: Any = None) -> Any:
        self.steps.append(name)
        if self._ends_at in self.steps:  # from there on nothing of it responds
            raise self._error
        return result

    def awaitTermination(self, _: float) -> bool:
        return cast(bool, self._step("wait", len(self.steps) > 4))

    def stop(self) -> None:
        self._step("stop")


def run(is_stopping: Callable[[], bool], claims: list[str]) -> bool:
    claim = SimpleNamespace(
        besides=lambda report: report,
        tell=lambda report: None,
        require_held=lambda: None,
        end=lambda: claims.append("ended"),
    )
    settings = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders")
    return mirror_job.run(settings, PreparedLink(1, (), {}), is_stopping, claim=cast(RunClaim, claim))


@pytest.mark.parametrize("ends_at", ["session", "start", "wait"])
@pytest.mark.parametrize("error", GONE)
def test_a_jvm_that_ends_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, ends_at: str, error: Exception
) -> None:
    Spark(monkeypatch, ends_at, error)
    claims: list[str] = []
    with pytest.raises(TolerantClientError, match="Spark could not be started, or its JVM has ended") as caught:
        run(lambda: False, claims)
    assert type(error).__name__ in str(caught.value) and "\n" not in str(caught.value)
    assert claims == ["ended"], "what was copied before Spark had started is over, too"


@pytest.mark.parametrize("ends_at", ["session", "start", "wait", "stop"])
@pytest.mark.parametrize("error", GONE)
def test_a_signal_that_ended_the_jvm_too_has_interrupted_the_mirror(
    monkeypatch: pytest.MonkeyPatch, ends_at: str, error: Exception
) -> None:
    spark = Spark(monkeypatch, ends_at, error)
    assert run(lambda: not {ends_at, "wait"}.isdisjoint(spark.steps), []) is False
    assert spark.steps[-1] == ("session" if ends_at == "session" else "stop")


def test_a_jvm_that_ends_while_its_session_is_stopped_takes_nothing_from_a_copy_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = Spark(monkeypatch, "stop", GONE[1])
    assert run(lambda: False, []) is True
    assert spark.steps[:2] == ["session", "start"] and spark.steps[-1] == "stop"


@pytest.mark.parametrize(("met_at", "steps"), [(None, []), ("session", ["session", "stop"]), ("wait", None)])
def test_what_no_repeat_cures_ends_the_run_though_spark_has_not_met_it(
    monkeypatch: pytest.MonkeyPatch, met_at: str | None, steps: list[str] | None
) -> None:
    """Before Spark is started none is; a stop hides it nowhere."""
    spark = Spark(monkeypatch, "never", GONE[0])
    met = SourceTruncatedError("created again")
    heads: list[Any] = []

    def begin(head: Any) -> None:
        heads.append(head)
        head.error = met if met_at is None else None

    def is_stopping() -> bool:
        is_met = met_at in spark.steps
        if is_met:
            heads[0].error = met
        return is_met

    monkeypatch.setattr(mirror_job.HeadStart, "start", begin)

    with pytest.raises(SourceTruncatedError, match="created again"):
        run(is_stopping, [])
    assert steps is None or spark.steps == steps


@pytest.mark.parametrize("ends_by", ["a stop", "a lost claim", "an error"])
def test_what_ends_a_run_does_not_wait_for_spark_and_leaves_no_jvm(
    monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    jvms: list[subprocess.Popen[bytes]] = []

    def hangs(_: Any) -> None:
        jvms.append(subprocess.Popen(["sh", "-c", "sleep 600 & wait"], stdout=subprocess.PIPE))
        jvms[0].wait()
        raise GONE[0]

    heads: list[Any] = []
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", hangs)
    monkeypatch.setattr(mirror_job.HeadStart, "start", lambda head: heads.append(head))
    monkeypatch.setattr(mirror_job.HeadStart, "join", lambda *_: None)
    claims: list[str] = []

    def require_held() -> None:
        if jvms and ends_by == "a lost claim":
            raise TolerantClientError("claimed")
        if jvms and ends_by == "an error":
            heads[0].error = SourceTruncatedError("created again")

    def end() -> None:
        assert heads[0].stopped.is_set(), "it takes nothing more"
        claims.append("ended")

    claim = SimpleNamespace(besides=lambda report: report, tell=lambda report: None, require_held=require_held, end=end)
    settings = MirrorSettings({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, "orders")
    began = time.monotonic()

    def go() -> bool:
        link, is_stopping = PreparedLink(1, (), {}), lambda: bool(jvms) and ends_by == "a stop"
        return mirror_job.run(settings, link, is_stopping, claim=cast(RunClaim, claim))

    if ends_by == "a stop":
        assert go() is False
    else:
        with pytest.raises(TolerantClientError, match="claimed" if ends_by == "a lost claim" else "created again"):
            go()
    assert claims == ["ended"]
    assert jvms[0].communicate(timeout=30)[0] == b"", "nobody has its standard output any more"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("asked_at", "steps"), [(None, []), ("session", ["session", "stop"])])
def test_a_stop_that_is_asked_for_before_the_query_starts_starts_none(
    monkeypatch: pytest.MonkeyPatch, asked_at: str | None, steps: list[str]
) -> None:
    spark = Spark(monkeypatch, "never", GONE[0])
    assert run(lambda: asked_at is None or asked_at in spark.steps, []) is False
    assert spark.steps == steps


def test_spark_starts_in_a_thread_where_pyspark_takes_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def start(_: Any) -> Any:
        threads.append(threading.current_thread())
        return SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=None))

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    assert mirror_job.spark_session(1) is not None
    (starting,) = threads
    assert starting is not threading.main_thread() and not starting.is_alive()


def test_a_jvm_that_ends_in_the_middle_of_a_connection_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a stop of the driver alone it ends its connection to pyspark's server of accumulators before that server."""
    server = object.__new__(AccumulatorTCPServer)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: session)
    assert mirror_job.spark_session(1) is not None
    try:
        raise EOFError
    except EOFError:
        server.handle_error(None, ("127.0.0.1", 1))  # type: ignore[arg-type]  # it is only printed
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", GONE)
def test_a_jvm_that_ends_while_all_flows_start_is_told_in_one_sentence_and_not_at_all_after_a_signal(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    spark = Spark(monkeypatch, "session", error)
    with pytest.raises(TolerantClientError, match="Spark could not be started, or its JVM has ended"):
        run_links([], is_stopping=lambda: False, tell=lambda event: None)
    spark.steps.clear()
    run_links([], is_stopping=lambda: "session" in spark.steps, tell=lambda event: None)
    assert spark.steps == ["session"]
    run_links([], is_stopping=lambda: True, tell=lambda event: None)
    assert spark.steps == ["session"], "a stop before Spark starts starts none"
