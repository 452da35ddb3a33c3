"""`tolerant-kafka mirror --config`: all flows of a MirrorMaker 2 file, for as long as it runs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from spark_integration.cli.exits import require_spark
from tolerant_client.ops.mm2.flows import Flow, Flows, read_flows
from tolerant_client.ops.printing import Table, echo, echo_each, echo_json, print_table


def mirror_flows(
    config: Path,
    targets: Collection[str],
    metrics: str | None,
    *,
    is_dry_run: bool,
    as_json: bool,
) -> None:
    """Runs until SIGTERM or SIGINT; with `is_dry_run` only prints the flows.

    With `targets` only the flows into these clusters.  Raises OptionError and TolerantClientError.
    """
    flows = read_flows(config, targets)
    echo_each("warning", flows.warnings)
    if is_dry_run:
        show(flows, as_json)
        return
    require_spark()
    from spark_integration.mirror.flow_links import run_flows  # imports Spark, which --dry-run does not need
    from tolerant_client.ops.service.stop_signals import stop_signals

    stopping = stop_signals()
    run_flows(flows, is_stopping=stopping.is_set, metrics=metrics)


def show(flows: Flows, as_json: bool) -> None:
    """Prints the flows as they would run."""
    rows = [_row(flow) for flow in flows.flows]
    if as_json:
        beating = [str(flow) for flow in flows.heartbeats_only]
        echo_json({"flows": rows, "heartbeats_only": beating, "warnings": flows.warnings})
        return
    for row in rows:
        table = Table("", "", title=f"flow {row.pop('flow')}", show_header=False)
        for name, value in row.items():
            table.add_row(name, ", ".join(value) if isinstance(value, list) else "no limit" if value is None else value)
        print_table(table)
    if flows.heartbeats_only:
        echo(f"Heartbeats only: {', '.join(map(str, flows.heartbeats_only))}")


def _row(flow: Flow) -> dict[str, object]:
    every = {
        "new topics": flow.refresh_topics_s,
        "group offsets": flow.sync_group_offsets_s,
        "topic configurations": flow.sync_topic_configs_s,
        "ACLs": flow.sync_topic_acls_s,
        "heartbeats": flow.emit_heartbeats_s,
        "checkpoints": flow.emit_checkpoints_s,
    }
    return {
        "flow": str(flow),
        "source": flow.source["bootstrap.servers"],
        "target": flow.target["bootstrap.servers"],
        "topics": list(flow.topics.include),
        "topics left out": list(flow.topics.exclude),
        "orders is called": flow.link_topics.to_target("orders"),
        "groups": list(flow.groups.include),
        "offsets": flow.offsets,
        "tasks": flow.tasks,
        "bytes/s at most": flow.throttle_bytes,
        "every": [f"{name}: {'never' if seconds is None else f'{seconds:g} s'}" for name, seconds in every.items()],
    }
