"""The command `tolerant-kafka status`: how a link is doing."""

from __future__ import annotations

from spark_integration.cli.link import end_with, given_link
from spark_integration.cli.options import Json, WhichLink
from tolerant_client.errors import ClusterUnreachableError
from tolerant_client.mirror.life.mirrors import WAITS, at_work
from tolerant_client.mirror.life.status import LinkStatus
from tolerant_client.mirror.life.status_of_one import read_known_status
from tolerant_client.mirror.life.topic_status import TopicStatus
from tolerant_client.mirror.state.health import utc
from tolerant_client.ops.printing import Table, echo, echo_each, print_table


def status(which: WhichLink, as_json: Json = False) -> None:
    """Show the state of a link: lag in offsets, seconds and bytes; what is paused, lost or wrong. Exit code 3: needs attention.

    While one of the clusters does not respond it shows what the other one tells.
    """
    try:
        given = given_link(which, needs_source=True).known()
    except ClusterUnreachableError as error:
        if error.cluster == "source" and which.link is None and which.config is None:
            raise error.advising(
                "With --link, or --config, status shows what the target tells (tolerant-kafka list --target names its links)"
            ) from None
        raise
    found = given.run(
        lambda source, target: read_known_status(
            source, target, given.link, given.link_topics, of_file=given.flow is not None
        )
    )
    end_with(found, as_json, _show)


def _lag(topic: TopicStatus) -> str:
    if topic.lag is not None:
        return f"{topic.lag:,}" + (f" and {len(topic.unknown)} unknown" if topic.unknown else "")
    if topic.copied is not None:
        return f"unknown, {topic.copied:,} copied"
    return "unknown" if topic.source_end is None else f"unknown, of {topic.source_end:,}"


def _show(found: LinkStatus) -> None:
    speed = "" if found.copied_per_s is None else f", {found.copied_per_s:,.0f} offsets/s"
    rate = f", at most {found.bytes_per_s:,} bytes/s" if found.bytes_per_s else ""
    table = Table(
        "topic",
        "partitions",
        "lag",
        "uncommitted",
        "seconds",
        "bytes",
        "paused",
        "lost",
        title=f"link {found.link}: {found.health}{speed}{rate}",
    )
    for t in found.topics:
        seconds = "unknown" if t.lag_s is None else f"{t.lag_s:,.1f}"
        size = "unknown" if t.lag_bytes is None else f"{t.lag_bytes:,}"
        paused = "unknown" if t.paused is None else ", ".join(map(str, t.paused))
        if t.paused and len(t.paused) == t.partitions:
            paused = "all"
        uncommitted, lost = ("unknown" if n is None else f"{n:,}" if n else "" for n in (t.open_offsets, t.lost))
        table.add_row(t.topic, str(t.partitions), _lag(t), uncommitted, seconds, size, paused, lost)
    print_table(table)
    for run in at_work(found.mirrors or ()):
        where = f"on {run.host}, process {run.pid}, since {utc(run.since_ms)}"
        echo(f"mirror: {where}" if run.holds else f"another process: {where}, {WAITS}")
    echo_each("loss", found.losses or ())
    echo_each("note", found.notes)
    for reason in found.reasons:
        echo(f"tolerant-kafka: {reason.health}: {reason.text}", err=True)
