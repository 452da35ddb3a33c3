"""The import rules of DESIGN.md and STYLE.md, read from the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tolerant_client"
IMPURE = {"asyncio", "kafka", "logging", "select", "selectors", "socket", "ssl", "threading", "time"}
SANS_IO = (
    "api_rows",
    "apis",
    "batch_encoding",
    "coordinator_partition",
    "correlation",
    "events",
    "framing",
    "identity",
    "inflight",
    "lifecycle",
    "partitioner",
    "policy",
    "repeats",
    "request_facts",
    "requests",
    "roundtrips",
    "sending_order",
    "silence",
    "storm",
    "trial",
    "varint_columns",
    "wire",
)

# The lower ones may not import the upper ones.
ORDER = [
    {"stock_names"},
    {"resubscribing"},
    {"errors", "api_rows", "masking", "forking", "wire", "mirror.state_json"},
    {"policy", "roundtrips", "correlation"},
    {"framing", "apis", "events"},
    {"lifecycle", "coordinator_partition", "storm"},
    {"silence", "trial", "repeats", "sending_order", "identity"},
    {"inflight", "request_facts"},
    {"requests"},
    {"transport", "connection"},
    {"leaders", "client_metrics", "any_broker"},
    {"manager", "metrics"},
    {"coordinator_watch"},
    {"coordinator"},
    {"transactions"},
    {"clients"},
    {"codecs", "record_fields", "varint_columns"},
    {"record_batch"},
    {"batch_columns"},
    {"legacy_records"},
    {"arrow", "committed", "batch_encoding", "partitioner"},
    {"record_pieces"},
    {"consumer_records", "out_of_range"},
    {"fetcher"},
    {"consumer"},
    {"installation"},
    {"mirror.replication_policy"},
    {"mirror.topic_filter"},
    {"fetch", "produce", "txn_markers"},
    {"fetch_by_id"},
    {"fetch_session"},
    {"raw"},
    {"producer_settings", "producer_partition", "topic_lookup", "mirror.led_offsets", "mirror.log_ends"},
    {"batch_producer", "producer_transaction"},
    {"mirror.link.claims", "mirror.link.group_requests", "mirror.link.half_done", "mirror.link.left", "mirror.link.mm2_records"},
    {"mirror.link.claimant", "mirror.link.health"},
    {"mirror.gaps", "mirror.limits", "mirror.turns", "mirror.link.throttle"},
    {"mirror.rewrite"},
    {"mirror.appendable"},
    {"mirror.translated.dense", "mirror.translated.offset_map"},
    {"mirror.translated.copy_transaction"},
    {"mirror.verify.log_columns", "mirror.verify.outcome", "mirror.verify.superseded"},
    {"mirror.verify.log_comparison"},
    {"mirror.losses"},
    {"mirror.identical.partition", "mirror.plan"},
    {"mirror.topics", "mirror.divergence", "mirror.producers", "mirror.epochs", "mirror.measures"},
    {"mirror.own_topic"},
    {"mirror.link.carriers", "mirror.link.control", "mirror.link.claims_topic", "mirror.open_transactions"},
    {"mirror.link.naming"},
    {"mirror.translated.map_topic"},
    {"mirror.translated.translate"},
    {"mirror.link.internal_topics", "mirror.link.configs", "mirror.link.acls"},
    {"mirror.link.groups", "mirror.link.heartbeats"},
    {"mirror.link.checkpoints"},
    {"mirror.translated.place"},
    {"mirror.translated.adopted"},
    {"mirror.translated.intake"},
    {"mirror.ledger", "mirror.link.mm2_positions"},
    {"mirror.identical.places"},
    {"mirror.identical.difference"},
    {"mirror.link.beginning", "mirror.link.fence", "mirror.identical.state"},
    {"mirror.link.scope", "mirror.link.ends", "mirror.link.promotion_report", "mirror.translated.shared_reads"},
    {"mirror.link.promotion", "mirror.link.failback"},
    {"mirror.link.takeover"},
    {"mirror.link.handback"},
    {"mirror.identical.log_start", "mirror.identical.given_times"},
    {"mirror.identical.gap_producer"},
    {"mirror.identical.fill", "mirror.identical.open_gaps"},
    {"mirror.verify.slices"},
    {"mirror.verify.slices_comparison"},
    {"mirror.verify.report"},
    {"mirror.identical.append", "mirror.identical.begun", "mirror.identical.facts", "mirror.sync", "mirror.verify.verification"},
    {"mirror.link.status", "mirror.link.plan_report"},
    {"mirror.link.repair", "mirror.link.listing"},
    {"mirror.identical.witnesses", "mirror.identical.probes"},
    {"mirror.identical.pull", "mirror.identical.resting"},
    {"mirror.identical.copy", "mirror.translated.partition"},
    {"mirror.translated.copier"},
    {"mirror.worker"},
]


def imported(path: Path) -> set[str]:
    """Every module that a file imports at run time, wherever in the file it does."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", SANS_IO)
def test_sans_io_modules_know_no_clock_socket_thread_or_log(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(PACKAGE / f"{module}.py")}
    assert not roots & IMPURE


def test_every_module_has_its_layer() -> None:
    modules = {str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".") for path in PACKAGE.rglob("*.py")}
    at_home_anywhere = {m for m in modules if m.startswith("testing.") or m.split(".")[-1] in ("__init__", "__main__")}
    assert modules - at_home_anywhere == set().union(*ORDER)


def test_nothing_below_imports_what_is_above() -> None:
    level = {module: height for height, modules in enumerate(ORDER) for module in modules}
    wrong = []
    for module, height in level.items():
        for name in imported(PACKAGE / f"{module.replace('.', '/')}.py"):
            other = name.removeprefix("tolerant_client.")
            if other != name and level.get(other, -1) > height:
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_tolerant_client_never_imports_pyspark_or_the_spark_integration() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        if path.name != "plugin.py" and roots & {"pyspark", "spark_integration", "pyspark_tolerantkafka"}:
            wrong.append(str(path.relative_to(PACKAGE)))
    assert wrong == []


def test_importing_the_package_imports_no_client() -> None:
    names = imported(PACKAGE / "__init__.py")
    assert not {name for name in names if name.split(".")[0] == "kafka" or name.startswith("tolerant_client.")}
