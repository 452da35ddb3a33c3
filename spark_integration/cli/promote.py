"""The commands `tolerant-kafka promote` and `failover`: applications move to the target."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_integration.cli.exits import told_if_interrupted
from spark_integration.cli.link import GivenLink, confirm, end_with, given_link
from spark_integration.cli.options import LONGEST_S, DryRun, Groups, Json, WhichLink, Yes
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import ClusterUnreachableError, text_of
from tolerant_client.mirror.follow.skipped import together
from tolerant_client.mirror.life.failover import failover as failover_link
from tolerant_client.mirror.life.promotion import promote as promote_link
from tolerant_client.mirror.life.promotion_report import PromotionReport
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import counted, few
from tolerant_client.mirror.state.link_control import link_options
from tolerant_client.mirror.state.link_topics import BesideFile, beside_file
from tolerant_client.mirror.state.map_rows import mapped_topics
from tolerant_client.ops.printing import Table, echo, echo_each, print_table

_OfTarget = Annotated[WhichLink, ("target", "link", "topics", "config", "flow", "target_properties")]

_PROMOTION = "the promotion had begun, it is not finished: run this again; tolerant-kafka status says whether it had"


def promote(
    which: WhichLink,
    groups: Groups = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0, max=LONGEST_S, help="How long to wait until all is copied."),
    ] = 60.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make the target the cluster to write to, once all is copied. Have the source's producers pause first; keep the mirror running.

    Clients with standby= stay open: they follow to the target.  A link is promoted as a whole.  The command waits until
    everything is copied, every copied record equals the source's, no transaction is open, and nobody writes.  Then it
    fences every process of the link, moves the groups a last time, and reports every partition's position and which
    groups were moved or left.  Only failback leads back, because each partition of the target has gained a marker.
    What another link, or somebody else, has written is left unchanged, and named.
    Exit codes: 0 promoted; 3 not promoted, because something blocks it (nothing was written), or promoted except for
    what the report names: is_begun in --json tells these apart.
    """
    given = given_link(which, groups, needs_source=True)

    def tell(text: str) -> None:
        if not as_json:
            echo(f"tolerant-kafka: {text}", err=True)

    whole = given.whole()
    confirm(
        f"{_told_beside(given)}Promote link {given.link}: its mirror stops for good, and only failback leads back",
        is_sure=yes or dry_run,
    )

    async def ask(origin: Cluster, there: Cluster) -> PromotionReport:
        try:
            await origin.connect()
        except ClusterUnreachableError as error:
            gone = f"if the source is gone for good, tolerant-kafka failover {link_options(given.link, there)} does not need it"
            raise ClusterUnreachableError(f"{text_of(error)}; {gone}") from error
        return await promote_link(
            origin,
            there,
            given.link,
            given.topics,
            given.groups,
            of_file=given.flow is not None,
            deadline_s=wait,
            is_dry_run=dry_run,
            tell=tell,
        )

    with told_if_interrupted(_PROMOTION, dry_run):
        report = whole.run(ask)
    end_with(report, as_json, _show)


def failover(
    which: _OfTarget,
    groups: Groups = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """The source is gone: make the target the cluster to write to, with what was copied. Does not ask the source.

    Fences every process of the link, wherever it is.  The report says how far every partition was copied, and the position
    of every group.  Partitions without a leader do not delay the others: they are named, and the same command fences them
    when they have one.  What another link, or somebody else, has written is left unchanged, and named.
    Exit codes: 0 promoted; 3 promoted except for what the report names, or the target has lost copied records, or not
    promoted, because nothing can be fenced (nothing was written): is_begun in --json tells these apart.
    """
    given = given_link(which, groups)
    given.known()  # else it raises what is known of the link
    confirm(
        f"{_told_beside(given)}Fail link {given.link} over: what is not copied is left behind, and only failback leads back",
        is_sure=yes or dry_run,
    )
    with told_if_interrupted(_PROMOTION, dry_run):
        report = given.run_on_target(
            lambda there: failover_link(
                there, given.link, given.topics, given.groups, of_file=given.flow is not None, is_dry_run=dry_run
            )
        )
    end_with(report, as_json, _show)


def _told_beside(given: GivenLink) -> str:
    """The start of the question for a link that has more topics than its file names."""

    async def ask(there: Cluster) -> BesideFile:
        control = await read_control(there, given.link)
        mapped = await mapped_topics(there, given.link, control)
        return await beside_file(None, there, control, given.link, given.topics, mapped)

    kept = given.run_on_target(ask).kept if given.flow is not None else ()
    return "".join(f"{text[0].upper()}{text[1:]}. " for text in kept)


def _show(report: PromotionReport) -> None:
    if report.partitions:
        table = Table("topic", "partition", "copied until", "left behind", title=f"link {report.link}: {report.action}")
        for p in report.partitions:
            told = ["unknown" if offsets is None else f"{offsets:,}" for offsets in (p.copied_until, p.lag)]
            start, until = p.left_deleted or (0, 0)
            is_counted = p.left_records is not None and not p.left_unread and p.lag != until - start
            what = [counted(p.left_records or 0, "record")] if p.lag and is_counted else []
            what += [f"{until - start:,} deleted"] if start < until else []
            table.add_row(p.topic, str(p.partition), told[0], told[1] + (f" ({', '.join(what)})" if what else ""))
        print_table(table)
    if report.groups is not None:
        moved, right = ("would be moved", "are") if report.is_dry_run or not report.is_done else ("moved", "were")
        echo(
            f"groups: {counted(len(report.groups.moved), 'offset')} {moved}, {report.groups.unchanged} {right} already right"
        )
        for position in report.groups.behind:
            where = f"{position.partition.topic}-{position.partition.partition}"
            echo(f"behind: {position.group} has read more than was copied of {where}")
        for left in together(report.groups.left):
            echo(f"{'note' if left.is_note else 'left'}: {left}")
    if report.group_places:
        table = Table("group", "topic", "partition", "offset", "left to read")
        for place in report.group_places:
            table.add_row(
                place.group, place.topic, str(place.partition), f"{place.offset:,}", f"{place.left_to_read:,}"
            )
        print_table(table)
    echo_each("loss", report.losses)
    echo_each("damaged", few(text for text in report.damaged if text not in report.blockers))
    echo_each("warning", report.warnings)
    echo_each("not promoted", report.not_promoted)
    echo_each("left behind", (*((report.left_behind,) if report.left_behind else ()), *report.unknown_left))
    echo_each("blocker", report.blockers)
    if report.is_done:
        echo(f"Link {report.link} is promoted: nothing of it writes to the target any more")
    elif report.is_begun:
        echo(
            f"Link {report.link} is promoted in part: processes of it may still write to what is named; run this again"
        )
    elif report.is_dry_run and not report.blockers:
        echo(f"Link {report.link} could be promoted now; nothing was written")
    elif report.is_dry_run and report.action == "failover" and report.partitions:  # it leaves what it cannot fence
        echo(f"Link {report.link} could be promoted in part now, without what is named; nothing was written")
    else:
        echo(f"Link {report.link} was not promoted; nothing was written")
