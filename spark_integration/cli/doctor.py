"""The command `tolerant-kafka doctor`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from kafka.errors import KafkaError
from rich.console import Console

from spark_integration.cli.link import unnamed_link
from spark_integration.cli.options import LONGEST_S, Json, WhichLink, client_properties, file_option
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.life.naming import FORMER_DEFAULT
from tolerant_client.mirror.state.topic_filter import LinkTopics
from tolerant_client.ops.doctor.finding import ERRORS, HEALTHY, NOT_EXAMINED, WARNINGS
from tolerant_client.ops.doctor.link_checks import LinkOptions
from tolerant_client.ops.doctor.link_examination import Subject, examine
from tolerant_client.ops.doctor.report import as_json, print_report
from tolerant_client.ops.doctor.rights import CHECKPOINTS, HEARTBEATS, Duty
from tolerant_client.ops.mm2.flows import Flow, read_flows
from tolerant_client.ops.printing import echo, echo_each, echo_json, working

_PATIENCE_MS = 5_000  # with clusters that are asked for their link before the examination
_WORST_FIRST = (NOT_EXAMINED, ERRORS, WARNINGS, HEALTHY)

_Which = Annotated[WhichLink, ("source", "target", "link", "source_properties", "target_properties")]
_Cluster = Annotated[str | None, typer.Option("--cluster", metavar="HOST:PORT", help="Check one cluster alone.")]
_Topics = Annotated[
    str | None,
    typer.Option(
        "--topics",
        metavar="REGEX[,REGEX]",
        help="Regular expressions that match whole topic names. Default: the link's topics, or all topics.",
    ),
]
_Groups = Annotated[
    list[str], typer.Option("--group", metavar="GROUP", help="A group whose coordinator to check; may be repeated.")
]
_Ids = Annotated[
    list[str],
    typer.Option(
        "--transactional-id", metavar="ID", help="A transactional id whose coordinator to check; may be repeated."
    ),
]


def doctor(
    which: _Which,
    cluster: _Cluster = None,
    config: Annotated[
        Path | None,
        file_option("--config", "A MirrorMaker 2 file instead: each of its flows."),
    ] = None,
    topics: _Topics = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", min=0, max=LONGEST_S, help="How long to watch leaders and progress."
        ),
    ] = 10.0,
    group: _Groups = [],
    transactional_id: _Ids = [],
    brief: Annotated[bool, typer.Option("--brief", help="Print no findings of severity info.")] = False,
    in_json: Json = False,
    cluster_properties: Annotated[
        Path | None,
        typer.Option(
            "--cluster-properties",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Java client properties for --cluster.",
        ),
    ] = None,
) -> None:
    """Find what is wrong with clusters and the link between them. Writes nothing.

    Exit codes: 0 nothing found, 1 errors, 3 warnings, 2 a cluster did not respond (what was found is still printed).
    """
    began = time.monotonic()
    given = {
        "source": (which.source, which.source_properties),
        "target": (which.target, which.target_properties),
        "cluster": (cluster, cluster_properties),
    }
    for name, (servers, path) in given.items():
        if path is not None and servers is None:
            raise OptionError(f"--{name}-properties was given without --{name}")
    chosen = LinkTopics() if topics is None else LinkTopics.of(topics)
    clusters = {
        name: client_properties(servers, path) for name, (servers, path) in given.items() if servers is not None
    }
    if config is not None:
        if clusters or topics is not None or which.link is not None:
            raise OptionError("--config names the clusters, topics and links: leave the other options out")
        subjects = flow_subjects(config)
    elif not clusters or "cluster" in clusters and len(clusters) > 1:
        raise OptionError("Give --source, --target or both, or --cluster alone: HOST:PORT[,HOST:PORT...]")
    else:
        name = which.link or _meant(clusters)
        asks_control = topics is None and (which.link is not None or len(clusters) > 1)
        options, is_named = link_options(given, name), which.link is not None
        subjects = [Subject(clusters, chosen, name, options=options, asks_control=asks_control, is_named=is_named)]

    codes, reports = set(), []
    for subject in subjects:
        subject = replace(subject, seconds=seconds, groups=tuple(group), transactional_ids=tuple(transactional_id))
        with working("examining"):
            checkup = examine(subject)
        took = time.monotonic() - began
        codes.add(checkup.exit_code)
        if not in_json:
            if config is not None:
                echo(f"link {subject.link}")
            print_report(checkup, took, Console(), is_brief=brief)
        began = time.monotonic()
        reports.append({"link": subject.link, **as_json(checkup, took)})
    code = next(code for code in _WORST_FIRST if code in codes)
    if in_json:
        echo_json({"version": 1, "exit_code": code, "links": reports} if config is not None else reports[0])
    raise typer.Exit(code)


def _meant(clusters: Mapping[str, Mapping[str, str]]) -> str:
    """The link that other commands would use between these clusters; raises OptionError if there are several.

    A cluster that does not respond is no error here: the examination reports it.
    """
    if "source" not in clusters or "target" not in clusters:
        return FORMER_DEFAULT  # no link is examined
    try:
        return unnamed_link(clusters["source"], clusters["target"], patience_ms=_PATIENCE_MS)
    except OptionError:
        raise
    except KafkaError:
        return FORMER_DEFAULT


def link_options(given: Mapping[str, tuple[str | None, Path | None]], link: str) -> LinkOptions:
    """The options by which other commands name the link of this command line."""

    def of(*names: str) -> str:
        words = []
        for name in names:
            servers, path = given[name]
            words += [f"--{name} {shlex.quote(servers or name.upper())}"]
            words += [f"--{name}-properties {shlex.quote(str(path))}"] if path is not None else []
        return " ".join([*words, f"--link {shlex.quote(link)}"])

    return LinkOptions(of("target"), of("source", "target"))


def flow_subjects(path: Path) -> list[Subject]:
    """The subject to examine for each flow of a MirrorMaker 2 file; prints the file's warnings on standard error."""
    flows = read_flows(path)
    echo_each("warning", flows.warnings)
    if not flows.flows:
        raise OptionError(f"{path} enables no flow; set A->B.enabled = true")
    backwards = {(flow.target_cluster, flow.source_cluster) for flow in flows.heartbeats_only}
    return [
        Subject(
            {"source": flow.source, "target": flow.target},
            flow.link_topics,
            flow.link,
            copied_groups=flow.groups,
            duties=duties_of(flow, beats_back=(flow.source_cluster, flow.target_cluster) in backwards),
            called={
                HEARTBEATS: flow.names.policy.heartbeats_topic(),
                CHECKPOINTS: flow.names.policy.checkpoints_topic(flow.source_alias),
            },
            options=LinkOptions(flow.options, flow.options, flow.options),
            is_translated=flow.offsets == "translated",
        )
        for flow in flows.flows
    ]


def duties_of(flow: Flow, *, beats_back: bool) -> frozenset[Duty]:
    """The duties of the flow; with `beats_back` the file's reverse flow writes its heartbeats, too."""
    gap_fills = {flow.policy.gap_fill, *(value for setting, _, value in flow.policy.overrides if setting == "gap_fill")}
    done = {
        Duty.COPY: True,
        Duty.GROUPS: flow.sync_group_offsets_s is not None or flow.emit_checkpoints_s is not None,
        Duty.CONFIGS: flow.sync_topic_configs_s is not None,
        Duty.ACLS: flow.sync_topic_acls_s is not None,
        Duty.HEARTBEATS: flow.emit_heartbeats_s is not None,
        Duty.HEARTBEATS_BACK: beats_back,
        Duty.CHECKPOINTS: flow.emit_checkpoints_s is not None,
        Duty.MARKERS: GapFill.MARKERS in gap_fills,
        Duty.MARKERS_IF_ALLOWED: GapFill.AUTO in gap_fills and flow.offsets == "identical",
    }
    return frozenset(duty for duty, is_done in done.items() if is_done)
