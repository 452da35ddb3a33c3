"""The command `tolerant-kafka mirror`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from spark_integration.cli.exits import FAILED, LOOK, NOT_STARTED, echo_failure, ended_with, require_spark, tell_failure
from spark_integration.cli.link import time_ms, unnamed_link
from spark_integration.cli.mirror_flows import mirror_flows
from spark_integration.cli.options import GivenTopics, Json, Offsets, OffsetsKind, WhichLink, client_properties
from tolerant_client.cluster.cluster import LATEST, READ_COMMITTED, Cluster
from tolerant_client.errors import OptionError, StoppedError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.life.lens import MAP_LOST, look, positions_of
from tolerant_client.mirror.state.health import counted
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, find_held
from tolerant_client.mirror.state.topic_filter import LinkTopics, names_of
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.server import StatusServer
from tolerant_client.ops.monitoring.watch import LinkWatch
from tolerant_client.ops.printing import echo, echo_each, echo_json
from tolerant_client.security.kafka_config import kafka_python_config

if TYPE_CHECKING:  # these import Spark, which --dry-run of a file does not need
    from tolerant_client.mirror.engine.prepare import PreparedLink
    from tolerant_client.ops.service.mirror_settings import MirrorSettings
    from tolerant_client.ops.service.run_claim import RunClaim

_T = TypeVar("_T")

_SHOWN: Final = 20  # partitions of an interrupted copy
_PATIENCE_MS: Final = 5_000  # with a target that is asked for its positions, and may be why the copy was interrupted

_Which = Annotated[WhichLink, ("source", "target", "link", "config", "source_properties", "target_properties")]
GapFills = Annotated[
    list[str],
    typer.Option(
        "--gap-fill",
        metavar=f"[REGEX=]{'|'.join(GapFill)}",
        help="How to fill target offsets that have no committed record on the source.",
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
_Time = "2026-11-22T05:00:00+00:00, or ms since 1970"


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
    from_time: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Start empty target logs at that time: {_Time}.")
    ] = None,
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
        raise OptionError("Give --source, --target and --topics, or --config with a MirrorMaker 2 file")
    if is_dry_run:
        raise OptionError("--dry-run goes with --config; for one link: tolerant-kafka plan")
    if until_time is not None and not once:
        raise OptionError("--until goes with --once")
    from tolerant_client.ops.service.mirror_settings import MirrorSettings, run_claim
    from tolerant_client.ops.service.stop_signals import stop_signals

    tasks = 1 if tasks is None else tasks
    prepare, run = _engine(tasks)
    is_identical = offsets is not OffsetsKind.TRANSLATED
    settings = MirrorSettings(
        client_properties(which.source, which.source_properties),
        client_properties(which.target, which.target_properties),
        LinkTopics.of(topics),
        which.link or "",
        once,
        tasks,
        policy=MirrorPolicy.parse(gap_fill=gap_fill, on_loss=on_loss, on_oversized=on_oversized),
        offsets="identical" if is_identical else "translated",
        from_ms=None if from_time is None else time_ms("--from", from_time),
        until_ms=None if until_time is None else time_ms("--until", until_time),
    )
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
            try:
                prepared = prepare(settings, claim, stopping.is_set)
            except StoppedError as error:
                stopped = StoppedError("interrupted: the mirror had not started to copy; start it again")
                tell_failure(stopped)
                code = stopping.exit_code if once else 0
                if as_json:
                    echo_failure(stopped, code)
                raise typer.Exit(code) from error
        echo_each("warning", prepared.warnings)
        url = "" if server is None else server.url
        watch = LinkWatch(settings, prepared.ends, is_shown=is_shown, board=board, url=url)
        # From here on an error is no longer a wrong option: copying has begun.  It is printed after the bars, which would
        # overwrite it, and after the losses: those were accepted however the run ends.
        with ended_with(FAILED, as_json), _losses_told(watch), watch:
            try:
                goals = held_at_start(settings, prepared.ends, stopping.is_set) if once else {}
                is_done = run(settings, prepared, stopping.is_set, watch.tell, claim=claim)
                late = {p: end for p, end in goals.items() if watch.reached.get(p, 0) < end}
                held = still_held(settings, late, stopping.is_set) if is_done else []
            except StoppedError:
                is_done, late, held = False, {}, []
    if once and not is_done:
        _tell_interruption(settings, prepared.ends)
        raise typer.Exit(stopping.exit_code)
    seconds = time.monotonic() - started
    names = sorted({p.topic for p in prepared.ends})
    standing = watch.standing
    stands = standing.paused.keys() | standing.blocked.keys()
    behind = [p for p in watch.behind if p not in stands] if once and is_identical else []
    for partition in behind:
        text = f"{partition.topic}-{partition.partition} did not reach the end that its source had at the start"
        echo(f"tolerant-kafka: behind: {text}; start the mirror again", err=True)
    for one in held:
        echo(f"tolerant-kafka: waiting: copied up to the last stable offset; {one}", err=True)
    ended = sorted(late.keys() - {one.partition for one in held} - set(behind) - stands)
    for partition in ended:
        text = f"{partition.topic}-{partition.partition} had an open transaction at the start, which has ended since"
        echo(f"tolerant-kafka: behind: {text}; start the mirror again", err=True)
    is_to_look = bool(watch.losses or stands or behind or late)
    if as_json:
        losses = [row._asdict() for row in watch.losses]
        paused, blocked = (
            [{**partition._asdict(), "reason": reason} for partition, reason in sorted(found.items())]
            for found in (standing.paused, standing.blocked)
        )
        code = LOOK if is_to_look else 0
        sums = {"records": standing.records, "offsets": watch.copied, "seconds": round(seconds, 3)}
        document = {**sums, "topics": names, "losses": losses, "paused": paused, "blocked": blocked, "exit_code": code}
        echo_json({**document, "open_transactions": [one.to_json() for one in held]})
    else:  # offsets include those of markers and fillers, and of other writers
        copied = f"{counted(standing.records, 'record')} of {counted(len(names), 'topic')} copied in {seconds:.1f} s"
        least = "" if once or not tasks else "at least "  # Spark kills the last micro-batch's tasks before they report
        echo(f"{least}{copied}; the target has gained {counted(watch.copied, 'offset')}")
    if is_to_look:
        raise typer.Exit(LOOK)


@contextlib.contextmanager
def _losses_told(watch: LinkWatch) -> Iterator[None]:
    try:
        yield
    finally:
        echo_each("loss", watch.losses)


_Prepare = Callable[["MirrorSettings", "RunClaim", Callable[[], bool]], "PreparedLink"]


def _engine(tasks: int) -> tuple[_Prepare, Callable[..., bool]]:
    """How a mirror is prepared and run: as a Spark job, or in this process; raises OptionError if Spark cannot be started."""
    if tasks == 0:
        from tolerant_client.ops.service import local_job, mirror_settings

        return mirror_settings.prepare, local_job.run
    require_spark()
    from spark_integration.mirror import mirror_job

    return mirror_job.prepare, mirror_job.run


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
    echo(f"tolerant-kafka: interrupted: {offsets:,} offsets are not copied; start the mirror again", err=True)
