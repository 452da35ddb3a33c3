"""MirrorMaker 2's own samples, and published configurations: each runs unchanged, or the error says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.tree import SUPPORT
from tolerant_client.errors import OptionError
from tolerant_client.ops.mm2.flows import Flow, read_flows
from tolerant_client.ops.mm2.places import is_connection

EXAMPLES = SUPPORT / "mm2_examples"

# Flows as "A->B", those with heartbeats only in brackets, and the first words of each warning.
IDLE, OLD, ONE_CLIENT = "without effect here", "old names", "one client does all"
TAKEN = {
    "apache_kafka_2_4_sample": ("A->B B->C (A->C B->A C->A C->B)",),
    "apache_kafka_sample": ("A->B B->A ()", IDLE),
    "axonops_reference": ("source->target (target->source)", IDLE),
    "azure_event_hubs": ("source->destination (destination->source)", IDLE),
    "canonical_migrate": ("old->new (new->old)", IDLE),
    "chiodonia_migration": ("source->target (target->source)", IDLE),
    "cloudtechner_empty_aliases": ("old->new (new->old)", IDLE, OLD),
    "conduktor_failover": ("A->B (B->A)", IDLE),
    "event_center": ("event-center->event-center-new (event-center-new->event-center)", IDLE),
    "hifly_active_active": ("DC-X->DC-Y DC-Y->DC-X ()",),
    "kafka_docs_clients": ("us-west->us-east (us-east->us-west)", IDLE, ONE_CLIENT),
    "kip_382_readme": ("us-west->us-east (us-east->us-west)", IDLE),
    "oracle_streaming": ("source->destination (destination->source)", IDLE, OLD),
    "redhat_streams": ("cluster-1->cluster-2 cluster-2->cluster-1 ()",),
    "sage_environment": ("primary->mirror (mirror->primary)", IDLE),
    "stfc_alias": ("source->target (target->source)", IDLE),
    "udocirkel_failover": ("dc1->dc2 (dc2->dc1)",),
    "wingardium_blacklists": ("source->target (target->source)", IDLE, OLD),
}
REFUSED = {
    "azure_hdinsight": "Replication.factor (line 9) is not a MirrorMaker 2 key; did you mean replication.factor?",
    "bimoqi_draft_keys": "readahead.queue.capacity (line 7) is not a MirrorMaker 2 key",
    "iskuskov_json": "key.converter (line 11) can only be org.apache.kafka.connect.converters.ByteArrayConverter",
    "jctarla_max_tasks": "max.tasks (line 17) is not a MirrorMaker 2 key; did you mean tasks.max?",
    # Kafka's own documentation has comments after values, a flow us-west->us.east, emit.heartbeats, and Us-east.
    "kafka_docs_overview": "clusters (line 2) has a # in its value",
    "kafka_docs_flows": "us-west->us-east.emit.heartbeats (line 10) is not a MirrorMaker 2 key; did you mean us-west->us-east"
    ".emit.heartbeats.enabled?",
    "kafka_docs_two_way": "us-east.bootstrap.servers is required: clusters (line 2) names 'us-east', and"
    " Us-east.bootstrap.servers (line 4) belongs to none",
    "misterhex_wrong_keys": "primary->secondary.emit.offset-syncs.interval.seconds (line 13) is not a MirrorMaker 2 key",
    "oneuptime_comment": "source->destination.topics (line 6) has a # in its value",
    "oneuptime_dead_letters": "errors.tolerance (line 9) is refused: records that the target rejects would be lost",
    "sage_from_now_on": "primary.consumer.auto.offset.reset (line 6) is refused: the mirror copies a partition from its first record on",
    "yoonjk_policy": "replication.policy.class (line 8) is 'com.kafka.mirror.PrefixlessReplicationPolicy'; it can be",
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEON_BOOTSTRAP_SERVER", "neon:9092")
    for name in ("NEON_USERNAME", "NEON_PASSWORD", "MIRROR_MM2_PASSWORD"):
        monkeypatch.setenv(name, "x")


def test_every_example_is_accounted_for() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.properties")}
    assert found == {*TAKEN, *REFUSED, "kafka_docs_multi_cluster"} and len(found) > 25
    assert all(path.read_text().startswith("# Settings of: ") for path in EXAMPLES.glob("*.properties"))


@pytest.mark.parametrize("name", TAKEN)
def test_an_example_is_taken_as_it_is(name: str) -> None:
    found = read_flows(EXAMPLES / f"{name}.properties")
    flows, *warnings = TAKEN[name]
    assert f"{' '.join(map(str, found.flows))} ({' '.join(map(str, found.heartbeats_only))})" == flows
    assert len(found.warnings) == len(warnings)
    for warning, words in zip(found.warnings, warnings, strict=True):
        assert warning.startswith(words)


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_flows(path := EXAMPLES / f"{name}.properties")
    assert str(caught.value.args[0]).removeprefix(f"{path}: ").startswith(REFUSED[name])


def test_many_clusters_in_circles_with_the_default_policy_are_taken() -> None:
    found = read_flows(EXAMPLES / "kafka_docs_multi_cluster.properties", ["west-1", "west-2"])
    assert len(found.flows) == 4 and len(found.heartbeats_only) == 6
    assert len(read_flows(EXAMPLES / "kafka_docs_multi_cluster.properties").flows) == 12


def test_secrets_come_from_the_environment() -> None:
    flow = read_flows(EXAMPLES / "sage_environment.properties").flows[0]
    assert flow.source["bootstrap.servers"] == "neon:9092" and 'username="x"' in flow.source["sasl.jaas.config"]


def test_an_alias_of_its_own_is_in_the_names() -> None:
    flow = read_flows(EXAMPLES / "stfc_alias.properties").flows[0]
    assert flow.names.to_target("t") == "usdf.t"  # as MirrorSourceConfig of Kafka 4.2 has it


def test_files_made_at_random_mean_what_kafka_takes_them_for(tmp_path: Path) -> None:
    """Precedence and defaults of MirrorMakerConfig and the connectors of Kafka 4.2 (MirrorMakerAnswers.java)."""
    files = json.loads((EXAMPLES / "kafka_4_2_answers.json").read_text())
    compared = 0
    for number, file in enumerate(files):
        path = tmp_path / f"{number}.properties"
        path.write_text("\n".join(file["settings"]))
        found = read_flows(path)
        for is_enabled, flows in ((True, found.flows), (False, found.heartbeats_only)):
            for flow in flows:
                answer = file["pairs"].pop(str(flow))
                mine = _as_kafka_says(flow, is_enabled, answer["flow"])
                del answer["flow"]["refresh_groups"]  # without effect here: groups are listed anew in every round
                assert mine == answer["flow"], (number, str(flow))
                for side, properties in (("source", flow.source), ("target", flow.target)):
                    connection = {name: value for name, value in properties.items() if is_connection(name)}
                    assert connection == answer[side], (number, str(flow))
                compared += 1
        # Kafka starts these as well, although they do nothing.
        assert {pair["flow"]["heartbeats"] for pair in file["pairs"].values()} <= {"-1"}
    assert compared > 50


def _as_kafka_says(flow: Flow, is_enabled: bool, answer: dict[str, str]) -> dict[str, str]:
    duties = {
        "refresh_topics": flow.refresh_topics_s, "configs": flow.sync_topic_configs_s, "acls": flow.sync_topic_acls_s,
        "emit_checkpoints": flow.emit_checkpoints_s,
        "sync_groups": flow.sync_group_offsets_s, "heartbeats": flow.emit_heartbeats_s,
    }  # fmt: skip
    lists = {
        "topics": flow.topics.include, "topics.exclude": flow.topics.exclude,
        "groups": flow.groups.include, "groups.exclude": flow.groups.exclude,
    }  # fmt: skip
    return {
        "enabled": str(is_enabled).lower(),
        "source_alias": flow.source_alias,
        "target_alias": flow.target_alias,
        "remote": flow.names.to_target("t"),
        "checkpoints": flow.names.policy.checkpoints_topic(flow.source_alias),
        "rf": str(flow.replication_factor),
        "crf": str(flow.checkpoints_replication_factor),
        "hrf": str(flow.heartbeats_replication_factor),
        "copies_heartbeats": str(flow.copies_heartbeats).lower(),
        "tasks": str(flow.tasks),
        **{name: "-1" if every is None else str(int(every)) for name, every in duties.items()},
        **{name: "|".join(expressions) for name, expressions in lists.items() if name in answer},
    }
