"""prometheus.py, mbean_names.py, grafana.json and the package's README all have the same metrics."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from kafka.structs import TopicPartition
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from support.link_samples import HOSTILE, NOW_MS, state, troubled
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.open_transactions import Held, OpenTransaction
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.prometheus import MOST_PARTITIONS, MOST_PAUSED, LinkCollector
from tolerant_client.ops.service.link_state import DutyState, LinkState, Phase, TaskReport

PACKAGE = files("tolerant_client.ops.monitoring")
DASHBOARD: dict[str, Any] = json.loads(PACKAGE.joinpath("grafana.json").read_text())
NAME = re.compile(r"\b(?:tolerant_mirror|kafka_connect_mirror|kafka_producer|kafka_consumer)_\w+")


def registry(*states: Any) -> CollectorRegistry:
    board = Board()
    for one in states:
        board.tell(one)
    made = CollectorRegistry()
    made.register(LinkCollector(board, lambda: NOW_MS))
    return made


def everything() -> Any:
    """A state with a value for every metric."""
    clicks = TopicPartition("clicks", 0)
    one = OpenTransaction(clicks, 7, 0, 100, NOW_MS - 60_000, 50)
    paused = replace(troubled(), control=LinkControl(paused=frozenset(("orders",)), bytes_per_s=1_000_000))
    held = paused.partitions[clicks]
    uncommitted = {**paused.partitions, clicks: replace(held, stable_end=(held.source_end or 0) - 50)}
    return replace(paused, partitions=uncommitted, held=(Held(clicks, 100, 50, one),), still={clicks: NOW_MS - 30_000})


def emitted(*states: Any) -> set[str]:
    families = text_string_to_metric_families(generate_latest(registry(*states)).decode())
    return {sample.name for family in families for sample in family.samples}


def whole(name: str) -> str:
    """The README's name for the metric of a sample."""
    return re.sub(r"(latency_seconds)_(bucket|sum|count)$", r"\1", name)


def value(found: CollectorRegistry, name: str, /, **labels: str) -> float | None:
    return found.get_sample_value(name, labels)


def test_every_metric_has_its_row_in_the_readme_and_every_row_its_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PACKAGE.joinpath("README.md").read_text(), re.MULTILINE)
    documented = [name for name in rows if NAME.fullmatch(name)]
    assert sorted(documented) == sorted({whole(name) for name in emitted(everything())})


def expressions() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    return targets + variables + [a["expr"] for a in DASHBOARD["annotations"]["list"] if "expr" in a]


def labels_of(*states: Any) -> dict[str, set[str]]:
    """The labels of the samples of each name, as Prometheus would store them."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry(*states)).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def metrics_of(expression: str) -> dict[str, set[str]]:
    """Every metric in a PromQL expression, ours or not, and the labels by which it is selected or summed."""
    bare = re.sub(r'"[^"]*"|\[[^]]*\]|\$\w+', "", expression)
    sums = {
        label
        for labels in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", bare)
        for label in labels.split(",")
    }
    bare = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    chosen = {label for text in re.findall(r"{([^}]*)}", bare) for label in re.findall(r"(\w+)\s*[=!]", text)}
    names = re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", re.sub(r"{[^}]*}", "", bare))
    labels = {label.strip() for label in sums | chosen}
    # link and topic: the label behind a metric in label_values of a variable
    return {name: labels for name in names if name not in ("or", "and", "unless", "link", "topic")}


def test_dashboard_asks_only_for_what_is_emitted_by_labels_that_it_has() -> None:
    known = labels_of(everything())
    asked = [metrics_of(text) for text in expressions()]
    assert len(asked) == len(expressions()) and all(asked), "an expression without a metric"
    for metrics in asked:
        for name, labels in metrics.items():
            assert name in known, name
            assert labels <= known[name], (name, labels - known[name])


def test_legends_of_the_dashboard_name_labels_that_the_expression_leaves() -> None:
    known = labels_of(everything())
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            left = set().union(*(known[name] for name in metrics_of(target["expr"])))
            shown = set(re.findall(r"{{(\w+)}}", target.get("legendFormat") or ""))
            assert shown <= left, (panel["title"], shown - left)


def test_alerts_that_the_readme_recommends_ask_for_what_is_emitted() -> None:
    text = PACKAGE.joinpath("README.md").read_text().split("Alerts worth having:")[1].split("\n\n")[0]
    asked = {name for quoted in re.findall(r"`([^`]*)`", text) for name in NAME.findall(quoted)}
    assert len(asked) >= 5 and asked <= emitted(everything())


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    asked = {whole(name) for text in expressions() for name in NAME.findall(text)}
    assert {whole(n) for n in emitted(everything()) if n.startswith("tolerant_")} - asked == set()


def test_dashboard_is_laid_out_without_overlaps_and_every_panel_has_its_own_id() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows[:6] == ["Health", "Lag", "Throughput", "Latency", "Recoveries", "Losses"]


def test_values_are_those_of_the_sample() -> None:
    found = registry(everything())
    link = {"link": "A-B"}
    clicks = {**link, "topic": "clicks"}
    assert value(found, "tolerant_mirror_lag_offsets", **clicks) == 800
    assert value(found, "tolerant_mirror_lag_bytes", **clicks) == 800 * 250
    assert value(found, "tolerant_mirror_lag_seconds", **clicks) == 3.0
    assert value(found, "tolerant_mirror_lost_offsets", **clicks, reason="retention") == 40
    assert value(found, "tolerant_mirror_records_total", **clicks) == 36_000
    assert value(found, "tolerant_mirror_log_end_offset", **clicks, cluster="source") == 4 * 1_002_000
    assert value(found, "tolerant_mirror_partition_lag_offsets", **clicks, partition="3") == 200
    assert value(found, "tolerant_mirror_recovery_events_total", **link, kind="lost") == 12
    assert value(found, "tolerant_mirror_health", **link) == 2
    assert value(found, "tolerant_mirror_uncommitted_offsets", **clicks) == 50
    assert value(found, "tolerant_mirror_open_transaction_seconds", **link) == 60
    standing = {
        name: value(found, f"tolerant_mirror_{name}_partitions", **clicks) for name in ("paused", "blocked", "waiting")
    }
    assert standing == {"paused": 0, "blocked": 0, "waiting": 1}
    assert value(found, "tolerant_mirror_paused_partitions", **link, topic="orders") == 4
    assert value(found, "tolerant_mirror_blocked_partitions", **link, topic="audit.log") == 1
    assert value(found, "tolerant_mirror_report_time_seconds", **link) == (NOW_MS - 4_000) / 1000
    mm2 = {"source": "A", "target": "B", "topic": "clicks", "partition": "0"}
    name = "kafka_connect_mirror_mirrorsourceconnector_"
    assert value(found, name + "record_count", **mm2) == 9_000
    assert value(found, name + "record_rate", **mm2) == 375
    assert value(found, name + "byte_rate", **mm2) == 375 * 250
    assert value(found, name + "replication_latency_ms_avg", **mm2) == 40
    assert value(found, name + "replication_latency_ms_max", **mm2) == 182
    produce, fetch = "kafka_producer_producer_metrics_produce", "kafka_consumer_consumer_fetch_manager_metrics_fetch"
    throttles = [value(found, f"{of}_throttle_time_{end}", **link) for of in (produce, fetch) for end in ("avg", "max")]
    assert throttles == [1_000, 1_500, 0, 0]
    group = {"source": "A", "target": "B", "group": "billing", "topic": "orders", "partition": "1"}
    assert value(found, "kafka_connect_mirror_mirrorcheckpointconnector_checkpoint_latency_ms", **group) == 210


def test_histogram_counts_upwards_and_ends_at_infinity() -> None:
    found = registry(state())
    name = "tolerant_mirror_replication_latency_seconds_"
    assert value(found, name + "bucket", link="A-B", le="0.025") == 45
    assert value(found, name + "bucket", link="A-B", le="+Inf") == 700 == value(found, name + "count", link="A-B")
    assert value(found, name + "sum", link="A-B") == pytest.approx(32 * 3.6)


def test_what_is_not_known_has_no_sample() -> None:
    found = registry(replace(state(), report=TaskReport(), recent={}))
    assert value(found, "tolerant_mirror_report_time_seconds", link="A-B") is None
    assert value(found, "tolerant_mirror_throttle_bytes_per_second", link="A-B") is None
    assert value(found, "kafka_producer_producer_metrics_produce_throttle_time_max", link="A-B") is None
    mm2 = {"source": "A", "target": "B", "topic": "clicks", "partition": "0"}
    assert value(found, "kafka_connect_mirror_mirrorsourceconnector_record_age_ms", **mm2) is None


def test_a_link_that_nobody_has_looked_at_has_no_good_news() -> None:
    found = registry(LinkState("A-B", started_ms=NOW_MS, phase=Phase.RESTARTING, problem="away", restarts=4))
    for cluster in ("source", "target"):
        assert value(found, "tolerant_mirror_cluster_reachable", link="A-B", cluster=cluster) is None
    assert value(found, "tolerant_mirror_look_time_seconds", link="A-B") is None
    assert value(found, "tolerant_mirror_restarts_total", link="A-B") == 4
    away = registry(replace(state(), unreachable={"source": "refused"}))
    assert value(away, "tolerant_mirror_cluster_reachable", link="A-B", cluster="source") == 0
    assert value(away, "tolerant_mirror_cluster_reachable", link="A-B", cluster="target") == 1


def test_a_query_that_does_not_run_is_not_up() -> None:
    for phase in Phase:
        found = registry(replace(state(), phase=phase))
        assert value(found, "tolerant_mirror_up", link="A-B") == (phase is Phase.RUNNING)


def test_series_are_bounded_and_their_sums_stay_right() -> None:
    many = state(topics=1_500, partitions=2)
    samples = [sample for family in registry(many).collect() for sample in family.samples]
    lags = [s.value for s in samples if s.name == "tolerant_mirror_lag_offsets"]
    assert len(lags) == 1_001 and sum(lags) == sum(100 * 2 * n for n in range(1_500))
    assert len([s for s in samples if s.name == "tolerant_mirror_partition_lag_offsets"]) == MOST_PARTITIONS
    counts = [s for s in samples if s.name == "kafka_connect_mirror_mirrorsourceconnector_record_count"]
    assert {s.labels["partition"] for s in counts} == {"all"} and sum(s.value for s in counts) == 3_000 * 9_000


def test_control_of_the_operator_is_told() -> None:
    link = {"link": "A-B"}
    found = registry(everything())
    assert value(found, "tolerant_mirror_throttle_bytes_per_second", **link, said_by="operator") == 1_000_000
    assert value(found, "tolerant_mirror_paused", **link, topic="orders", partition="") == 1
    assert value(found, "tolerant_mirror_promoted", **link) == 0
    half = registry(replace(state(), control=LinkControl(is_promotion_begun=True)))
    assert value(half, "tolerant_mirror_promoted", **link) == 0, "a process of it may still write"
    found = registry(replace(state(), control=LinkControl(is_promotion_begun=True, is_fenced=True), own_rate=500))
    assert (value(found, "tolerant_mirror_promoted", **link), value(found, "tolerant_mirror_fenced", **link)) == (1, 1)
    assert value(found, "tolerant_mirror_throttle_bytes_per_second", **link, said_by="start") == 500


def test_what_is_paused_is_bounded() -> None:
    many = replace(state(), control=LinkControl(paused=frozenset(f"topic-{n}" for n in range(MOST_PAUSED + 500))))
    samples = [s for family in registry(many).collect() for s in family.samples if s.name == "tolerant_mirror_paused"]
    assert len(samples) == MOST_PAUSED


def test_duties_tell_when_they_ended_and_those_that_never_did_do_not() -> None:
    found = registry(replace(state(), duties={"beat": DutyState(NOW_MS, "", 1.0), "new": DutyState()}))
    assert value(found, "tolerant_mirror_duty_time_seconds", link="A-B", duty="beat") == NOW_MS / 1000
    assert value(found, "tolerant_mirror_duty_time_seconds", link="A-B", duty="new") is None
    assert value(found, "tolerant_mirror_duty_failing", link="A-B", duty="new") == 0


def test_several_links_do_not_mix() -> None:
    found = registry(state(), state(link="B-A", busy=3.0))
    assert value(found, "tolerant_mirror_lag_offsets", link="A-B", topic="clicks") == 800
    assert value(found, "tolerant_mirror_lag_offsets", link="B-A", topic="clicks") == 2_400


def test_openmetrics_is_spoken_too_and_hostile_texts_stay_in_their_place() -> None:
    control = LinkControl(paused=frozenset(('a"\n\\',)))
    hostile = replace(troubled(), duties={HOSTILE: DutyState(NOW_MS, "x")}, control=control)
    found = registry(hostile)
    assert value(found, "tolerant_mirror_duty_failing", link="A-B", duty=HOSTILE) == 1
    assert generate_openmetrics(found).endswith(b"# EOF\n")
    again = {
        s.labels.get("duty") for f in text_string_to_metric_families(generate_latest(found).decode()) for s in f.samples
    }
    assert HOSTILE in again
