"""The command `tolerant-kafka mirror`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from spark_integration.cli.exits import FAILED, NOT_STARTED, echo_failure, ended_with, require_spark, tell_failure
from spark_integration.cli.link import end_with, time_ms, unnamed_link
from spark_integration.cli.mirror_flows import mirror_flows
from spark_integration.cli.mirror_report import MirrorReport, unsettled_warnings
from spark_integration.cli.options import (
    FromTime,
    GivenTopics,
    Json,
    Offsets,
    OffsetsKind,
    WhichLink,
    client_properties,
)
from tolerant_client.cluster.admin.offsets import list_led_offsets
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import OptionError, StoppedError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.life.lens import MAP_LOST, look, positions_of
from tolerant_client.mirror.state.health import counted, counted_are, kept_at_ends
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, find_held
from tolerant_client.mirror.state.topic_filter import LinkTopics, names_of
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.printing import echo, echo_each
from tolerant_client.security.kafka_config import kafka_python_config

if TYPE_CHECKING:  # these import Spark, which --dry-run of a file does not need
    from tolerant_client.mirror.engine.prepare import PreparedLink
    from tolerant_client.ops.service.mirror_settings import MirrorSettings
    from tolerant_client.ops.service.run_claim import RunClaim
    from tolerant_client.ops.service.stop_signals import StopSignal

_T = TypeVar("_T")

_SHOWN: Final = 20  # partitions of an interrupted copy
_PATIENCE_MS: Final = 5_000  # with a target that is asked for its positions, and may be why the copy was interrupted

_Which = Annotated[WhichLink, ("source", "target", "link", "config", "source_properties", "target_properties")]
GapFills = Annotated[
    list[str],
    typer.Option(
        "--gap-fill",
        metavar=f"[REGEX=]{'|'.join(GapFill)}",
        help="How to fill target offsets that have no committed record on the source; default auto: records in compacted"
        " topics, else markers where the mirror's user may write them, else transactions.",
    ),
]
OnLoss = Annotated[
    list[str],
    typer.Option(
        "--on-loss",
        metavar="[REGEX=]fail|continue|pause",
        help="What to do when the source no longer has records that were not copied.",
    ),
]
OnOversized = Annotated[
    list[str],
    typer.Option(
        "--on-oversized",
        metavar="[REGEX=]fail|continue|pause",
        help="What to do with a record above the target's max.message.bytes.",
    ),
]


def mirror(
    which: _Which,
    topics: GivenTopics = None,
    clusters: Annotated[
        str | None,
        typer.Option("--clusters", metavar="ALIAS[,ALIAS]", help="With --config: only the flows into these clusters."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop at the last stable offsets seen at the start.")] = False,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="With --config: show the flows; copy nothing.")] = False,
    as_json: Json = False,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            metavar="N",
            min=0,
            help="Spark tasks that share the partitions; default 1. 0: in this process, without Spark and Java.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Serve a status page at /, Prometheus metrics at /metrics."
        ),
    ] = None,
    offsets: Offsets = None,
    gap_fill: GapFills = [],
    on_loss: OnLoss = [],
    on_oversized: OnOversized = [],
    from_time: FromTime = None,
    until_time: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="With --once: stop before records of that time.")
    ] = None,
) -> None:
    """Copy topics to another cluster, every record at the same offset.

    With --config a MirrorMaker 2 file sets everything: all its flows run, and are started again after any failure.
    """
    if which.config is not None:
        own = any(option is not None for option in (topics, tasks, offsets, from_time, until_time))
        if own or once or gap_fill or on_loss or on_oversized or which.says_what_a_file_does:
            raise OptionError(
                "--config sets what is copied and how: only --clusters, --metrics, --dry-run and --json go with it"
            )
        mirror_flows(which.config, names_of(clusters or ""), metrics, is_dry_run=is_dry_run, as_json=as_json)
        return
    if clusters is not None:
        raise OptionError("--clusters goes with --config")
    if which.source is None or which.target is None or topics is None:
        given = {"--source": which.source, "--target": which.target, "--topics": topics}
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise OptionError(f"Give {missing}, or --config with a MirrorMaker 2 file")
    if is_dry_run:
        raise OptionError("--dry-run goes with --config; for one link: tolerant-kafka plan")
    if until_time is not None and not once:
        raise OptionError("--until goes with --once")
    from tolerant_client.ops.service.mirror_settings import MirrorSettings

    tasks = 1 if tasks is None else tasks
    engine = _engine(tasks)
    settings = MirrorSettings(
        client_properties(which.source, which.source_properties),
        client_properties(which.target, which.target_properties),
        LinkTopics.of(topics),
        which.link or "",
        once,
        tasks,
        policy=MirrorPolicy.parse(gap_fill=gap_fill, on_loss=on_loss, on_oversized=on_oversized),
        offsets="translated" if offsets is OffsetsKind.TRANSLATED else "identical",
        from_ms=None if from_time is None else time_ms("--from", from_time),
        until_ms=None if until_time is None else time_ms("--until", until_time),
    )
    report = _copied(settings, engine, metrics, as_json=as_json)
    for text in report.warnings:
        echo(f"tolerant-kafka: {text}", err=True)
    end_with(report, as_json, echo)


def _copied(settings: MirrorSettings, engine: _Engine, metrics: str | None, *, as_json: bool) -> MirrorReport:
    """Runs the mirror until it has copied all, or is stopped; ends the command if it fails, or is stopped before that."""
    from tolerant_client.ops.service.mirror_settings import run_claim
    from tolerant_client.ops.service.stop_signals import stop_signals

    is_shown = not as_json and sys.stderr.isatty()
    with contextlib.ExitStack() as open_:
        board = None if metrics is None else Board()
        # Before a cluster is asked: an address that cannot be used is a wrong option.
        server = None if board is None or metrics is None else open_.enter_context(StatusServer(board, metrics))
        if not settings.link:
            settings = replace(settings, link=unnamed_link(settings.source, settings.target, is_start=True))
        stopping = stop_signals()
        started = time.monotonic()
        claim = open_.enter_context(run_claim(settings))
        with ended_with(NOT_STARTED, as_json):  # after any error nothing is copied
            prepared = _prepared(engine, settings, claim, stopping, as_json=as_json)
        echo_each("warning", prepared.warnings)
        url = "" if server is None else server.url
        if not settings.once and not as_json:
            _tell_start(settings, prepared, url)
        watch = LinkWatch(settings, prepared.ends, prepared.target_ends, is_shown=is_shown, board=board, url=url)
        # From here on an error is no longer a wrong option: copying has begun.  It is printed after the bars, which would
        # overwrite it, and after the losses: those were accepted however the run ends.
        with ended_with(FAILED, as_json), _unsettled_told(claim), _losses_told(watch), watch:
            try:
                goals = held_at_start(settings, prepared.ends, stopping.is_set) if settings.once else {}
                is_done = engine.run(settings, prepared, stopping.is_set, watch.tell, claim=claim)
                late = [p for p, end in goals.items() if watch.reached.get(p, 0) < end]
                held = still_held(settings, {p: goals[p] for p in late}, stopping.is_set) if is_done else []
                kept = kept_at_end(settings, prepared, watch.reached, stopping.is_set) if is_done else {}
            except StoppedError:
                is_done, late, held, kept = False, [], [], {}
    if settings.once and not is_done:
        _tell_unsettled(claim)
        _tell_interruption(settings, prepared.ends)
        raise typer.Exit(stopping.exit_code)
    report = _report(settings, prepared, watch, late, held, time.monotonic() - started)
    stands = report.paused.keys() | report.blocked.keys()
    return replace(report, kept={p: why for p, why in kept.items() if p not in stands}, unsettled=claim.unsettled)


def _tell_start(settings: MirrorSettings, prepared: PreparedLink, url: str) -> None:
    topics = {p.topic for p in prepared.ends}
    what = f"{counted(len(topics), 'topic')} ({counted(len(prepared.ends), 'partition')})"
    page = f"; status page at {url}" if url else ""
    echo(f"tolerant-kafka: link {settings.link} copies {what}{page}; Ctrl-C stops it", err=True)


def _prepared(
    engine: _Engine, settings: MirrorSettings, claim: RunClaim, stopping: StopSignal, *, as_json: bool
) -> PreparedLink:
    try:
        return engine.prepare(settings, claim, stopping.is_set)
    except StoppedError as error:
        stopped = StoppedError("interrupted: the mirror had not started to copy; start it again")
        tell_failure(stopped)
        code = stopping.exit_code if settings.once else 0
        if as_json:
            echo_failure(stopped, code)
        raise typer.Exit(code) from error


def _report(
    settings: MirrorSettings,
    prepared: PreparedLink,
    watch: LinkWatch,
    late: Collection[TopicPartition],
    held: Sequence[Held],
    seconds: float,
) -> MirrorReport:
    """The report of a copy; `late` are partitions that did not reach the offsets that open transactions held back."""
    standing = watch.standing
    stands = standing.paused.keys() | standing.blocked.keys()
    # A translated copy tells of no partition that it had nothing to copy of.
    is_told = {*watch.behind} if settings.is_identical else standing.waiting.keys()
    left = [p for p in watch.behind if p in is_told and p not in stands] if settings.once else []
    waits = {p: standing.waiting[p].reason for p in left if p in standing.waiting}
    waiting = {p: why for p, why in {**prepared.waiting, **waits}.items() if settings.once and p not in stands}
    behind = [p for p in left if p not in waiting]
    return MirrorReport(
        topics=sorted({p.topic for p in prepared.ends}),
        records=standing.records,
        offsets=watch.copied,
        seconds=seconds,
        # Spark kills the last micro-batch's tasks before they report.
        is_least=not settings.once and settings.tasks > 0,
        counts_offsets=settings.is_identical,
        losses=watch.losses,
        paused=standing.paused,
        blocked=standing.blocked,
        waiting=waiting,
        behind=behind,
        held=held,
        ended=sorted(set(late) - {one.partition for one in held} - set(behind) - stands - waiting.keys()),
    )


@contextlib.contextmanager
def _losses_told(watch: LinkWatch) -> Iterator[None]:
    try:
        yield
    finally:
        echo_each("loss", watch.losses)


@contextlib.contextmanager
def _unsettled_told(claim: RunClaim) -> Iterator[None]:
    """Tells it of a mirror that fails, and so has no report."""
    try:
        yield
    except KafkaError:
        _tell_unsettled(claim)
        raise


def _tell_unsettled(claim: RunClaim) -> None:
    for text in unsettled_warnings(claim.unsettled):
        echo(f"tolerant-kafka: {text}", err=True)


class _Engine(NamedTuple):
    """How a mirror is prepared and run."""

    prepare: Callable[[MirrorSettings, RunClaim, Callable[[], bool]], PreparedLink]
    run: Callable[..., bool]


def _engine(tasks: int) -> _Engine:
    """A Spark job, or this process without tasks; raises OptionError if Spark cannot be started."""
    if tasks == 0:
        from tolerant_client.ops.service import local_job, mirror_settings

        return _Engine(mirror_settings.prepare, local_job.run)
    require_spark("--tasks 0")
    from spark_integration.mirror import mirror_job

    return _Engine(mirror_job.prepare, mirror_job.run)


def held_at_start(
    settings: MirrorSettings, partitions: Iterable[TopicPartition], is_stopping: Callable[[], bool]
) -> dict[TopicPartition, int]:
    """The source's log ends of partitions with an open transaction: what is left after the last stable offset.

    Raises StoppedError once `is_stopping`.
    """
    if settings.until_ms is not None:
        return {}  # the goals are timestamps

    async def ask(source: Cluster) -> dict[TopicPartition, int]:
        ends = await source.list_offsets(dict.fromkeys(partitions, LATEST))
        stable = await source.list_offsets(dict.fromkeys(ends, LATEST), isolation_level=READ_COMMITTED)
        return {p: end for p, end in ends.items() if stable[p] < end}

    return _of_source(settings, ask, is_stopping)


def still_held(
    settings: MirrorSettings, goals: Mapping[TopicPartition, int], is_stopping: Callable[[], bool]
) -> list[Held]:
    """The open transactions that still hold back offsets before `goals`.  Raises StoppedError once `is_stopping`."""
    if not goals:
        return []

    async def ask(source: Cluster) -> list[Held]:
        stable = await source.list_offsets(dict.fromkeys(goals, LATEST), isolation_level=READ_COMMITTED)
        return await find_held(source, {p: (stable[p], end) for p, end in goals.items()})

    return _of_source(settings, ask, is_stopping)


def kept_at_end(
    settings: MirrorSettings,
    prepared: PreparedLink,
    reached: Mapping[TopicPartition, int],
    is_stopping: Callable[[], bool],
) -> dict[TopicPartition, str]:
    """Why partitions that have `reached` an offset after the present end of their source's log are not copied.

    Decided by both ends, and not by what a copier says that it waits for, which may be over.  Raises StoppedError once `is_stopping`.
    """
    begun = prepared.target_ends
    ends = {p: max(reached.get(p, 0), begun.get(p, 0)) for p in prepared.ends} if settings.is_identical else {}
    # Others may have copied what the source has gained since the start.
    beyond = {p: end for p, end in ends.items() if end > prepared.ends[p]}
    if not beyond or not settings.once:
        return {}

    async def ask(source: Cluster) -> dict[TopicPartition, str]:
        return kept_at_ends(beyond, (await list_led_offsets(source, dict.fromkeys(beyond, LATEST))).offsets)

    return _of_source(settings, ask, is_stopping)


def _of_source(
    settings: MirrorSettings, ask: Callable[[Cluster], Awaitable[_T]], is_stopping: Callable[[], bool]
) -> _T:
    with Cluster(kafka_python_config(settings.source), name="source", names=settings.names) as source:
        return source.run(ask, source, is_stopping=is_stopping)


def _tell_interruption(settings: MirrorSettings, ends: Mapping[TopicPartition, int]) -> None:
    try:
        until = time.monotonic() + _PATIENCE_MS / 1000
        with Cluster(kafka_python_config(settings.target), name="target", patience_ms=_PATIENCE_MS) as target:
            asked = (look, None, target, settings.link, ends, settings.offsets == "translated", LinkControl())
            found = target.run(*asked, is_stopping=lambda: time.monotonic() > until)
    except KafkaError as error:
        if not isinstance(error, StoppedError):
            tell_failure(error)
        echo("tolerant-kafka: interrupted: the target does not tell how far it is; start the mirror again", err=True)
        return
    known = positions_of(found)
    if len(known) < len(found):
        text = f"{MAP_LOST}, and no start can resume without it; tolerant-kafka status says what to do"
        echo(f"tolerant-kafka: interrupted: how far the target is is unknown: {text}", err=True)
        return
    left = [(f"{p.topic}-{p.partition}", at, ends[p]) for p, at in known.items() if at < ends[p]]
    for name, copied, end in left[:_SHOWN]:
        echo(f"tolerant-kafka: interrupted: {name} is copied up to offset {copied:,} of {end:,}", err=True)
    if len(left) > _SHOWN:
        echo(f"tolerant-kafka: interrupted: and {len(left) - _SHOWN:,} more partitions", err=True)
    offsets = sum(end - copied for _, copied, end in left)
    echo(f"tolerant-kafka: interrupted: {counted_are(offsets, 'offset')} not copied; start the mirror again", err=True)
