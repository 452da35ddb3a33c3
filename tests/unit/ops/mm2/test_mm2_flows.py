"""MirrorMaker 2's files: precedence, defaults, and what is warned of or refused.

test_mm2_examples.py compares precedence and defaults with Kafka's own answers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import LossPolicy
from tolerant_client.mirror.state.replication_policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from tolerant_client.mirror.state.topic_filter import CONFIG_PROPERTIES_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE
from tolerant_client.ops.mm2.flows import Flow, Flows, read_flows

CANARY = "canary-4711"
IDENTITY = "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
AB = "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n"
ABC = AB.replace("A, B", "A, B, C") + "C.bootstrap.servers = c:9092\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mm2.properties"


def read(path: Path, text: str = "", base: str = AB) -> Flows:
    path.write_text(base + text)
    return read_flows(path)


def flow(path: Path, text: str = "", base: str = AB) -> Flow:
    return read(path, text, base).flows[0]


def refused(path: Path, text: str, base: str = AB) -> str:
    with pytest.raises(OptionError) as caught:
        read(path, text, base)
    assert CANARY not in f"{caught.value} {caught.value.__cause__}"
    said = str(caught.value.args[0])
    assert str(path) in said
    return said.removeprefix(f"{path}: ")


def test_defaults_are_those_of_mirrormaker_2(path: Path) -> None:
    found = flow(path)
    assert (found.source_alias, found.target_alias, found.link, str(found)) == ("A", "B", "A-B", "A->B")
    assert (found.source, found.target) == ({"bootstrap.servers": "a:9092"}, {"bootstrap.servers": "b:9092"})
    assert (found.topics.include, found.topics.exclude) == ((".*",), TOPICS_EXCLUDE)
    assert (found.groups.include, found.groups.exclude) == ((".*",), GROUPS_EXCLUDE)
    assert found.names.policy == DefaultReplicationPolicy() and found.names.to_target("t") == "A.t"
    assert found.config_properties_exclude == CONFIG_PROPERTIES_EXCLUDE and found.use_defaults_from == "target"
    assert found.refresh_topics_s == 600
    assert (found.sync_topic_configs_s, found.sync_topic_acls_s, found.sync_group_offsets_s) == (600, 600, None)
    assert (found.emit_heartbeats_s, found.emit_checkpoints_s, found.copies_heartbeats) == (1, 60, True)
    assert (found.replication_factor, found.checkpoints_replication_factor, found.heartbeats_replication_factor) == (
        2,
        3,
        3,
    )
    assert (found.tasks, found.offsets, found.throttle_bytes) == (1, "identical", None)
    assert read(path).warnings == ()


def test_a_flow_wins_over_the_top(path: Path) -> None:
    text = "topics = top\nA->B.topics = one, two.*\ngroups = g\nreplication.factor = 3\nA->B.replication.factor = -1\n"
    found = flow(path, text + "B->A.topics = other\ntasks.max = 4\n")
    assert (found.topics.include, found.groups.include) == (("one", "two.*"), ("g",))
    assert (found.replication_factor, found.tasks) == (-1, 4)


def test_a_duty_can_be_switched_off_and_have_its_interval(path: Path) -> None:
    text = (
        "refresh.topics.enabled = FALSE\nA->B.sync.topic.acls.enabled = false \nemit.checkpoints.interval.seconds = 5\n"
    )
    text += "sync.group.offsets.enabled = true\nsync.group.offsets.interval.seconds = 7\n"
    found = flow(path, text)
    assert (found.refresh_topics_s, found.sync_topic_acls_s) == (None, None)
    assert (found.emit_checkpoints_s, found.sync_group_offsets_s) == (5.0, 7.0)


def test_keys_of_refreshing_groups_are_said_to_have_no_effect(path: Path) -> None:
    (warning,) = read(path, "refresh.groups.enabled = false\nA->B.refresh.groups.interval.seconds = 5\n").warnings
    assert "refresh.groups.enabled" in warning and "refresh.groups.interval.seconds" in warning


def test_empty_lists_take_and_leave_out_nothing(path: Path) -> None:
    found = flow(path, "A->B.topics =\nA->B.groups.exclude =\nconfig.properties.exclude =\n")
    assert (found.topics.include, found.groups.exclude, found.config_properties_exclude) == ((), (), ())


def test_old_names_are_used_unless_there_are_new_ones(path: Path) -> None:
    both = read(
        path, "topics.blacklist = old\ntopics.exclude = new\ngroups.blacklist = g\nconfig.properties.blacklist = p\n"
    )
    found = both.flows[0]
    assert (found.topics.exclude, found.groups.exclude) == (("new",), ("g",))
    assert found.config_properties_exclude == ("p",)
    names = "topics.blacklist, groups.blacklist, config.properties.blacklist"
    assert both.warnings == (f"old names, which Kafka 4 no longer reads but this mirror does: {names}",)


def test_replication_policies(path: Path) -> None:
    assert flow(path, "replication.policy.separator = _\n").names.to_target("t") == "A_t"
    names = flow(path, IDENTITY + "A->B.replication.policy.separator = -\n").names
    assert names.policy == IdentityReplicationPolicy("-", source_alias="A")
    assert (names.to_target("t"), names.to_target("heartbeats")) == ("t", "A-heartbeats")
    text = "replication.policy.separator = _\nreplication.policy.internal.topic.separator.enabled = false\n"
    assert flow(path, text).names.policy.checkpoints_topic("A") == "A.checkpoints.internal"


def test_names_without_prefix_from_before_the_identity_policy(path: Path) -> None:
    found = flow(path, "replication.policy.separator =\nsource.cluster.alias =\ntarget.cluster.alias =\n")
    assert (found.source_alias, found.target_alias, found.link) == ("", "", "A-B")
    assert found.names.to_target("t") == "t"
    assert found.names.policy.checkpoints_topic(found.source_alias) == "checkpointsinternal"
    assert [found.link_topics.takes(name) for name in ("orders", "heartbeats", "checkpointsinternal")] == [
        True,
        False,
        False,
    ]


def test_another_alias_is_in_topics_and_the_clusters_stay_as_they_are(path: Path) -> None:
    found = flow(path, "A->B.source.cluster.alias = prod\n")
    assert (found.source_alias, found.names.to_target("t"), found.link) == ("prod", "prod.t", "A-B")
    assert found.source["bootstrap.servers"] == "a:9092"


def test_every_pair_that_is_not_enabled_has_heartbeats(path: Path) -> None:
    found = read(path, "A->C.emit.heartbeats.enabled = false\nB->C.enabled = true\n", ABC)
    assert [str(flow) for flow in found.flows] == ["A->B", "B->C"]
    assert [str(flow) for flow in found.heartbeats_only] == ["B->A", "C->A", "C->B"]
    assert {flow.emit_heartbeats_s for flow in found.heartbeats_only} == {1.0}
    found = read(path, "emit.heartbeats.enabled = false\nB->A.emit.heartbeats.enabled = true\n")
    assert [str(flow) for flow in found.heartbeats_only] == ["B->A"]
    assert found.flows[0].emit_heartbeats_s is None


def test_only_flows_into_the_clusters_that_are_asked_for(path: Path) -> None:
    path.write_text(ABC + "B->C.enabled = true\n")
    found = read_flows(path, ["C"])
    assert [str(flow) for flow in found.flows] == ["B->C"]
    assert [str(flow) for flow in found.heartbeats_only] == ["A->C"]
    with pytest.raises(OptionError, match="'D' is not in clusters = A, B, C"):
        read_flows(path, ["D"])
    with pytest.raises(OptionError, match="enables no flow into A; write A->B.enabled = true"):
        read_flows(path, ["A"])


def test_clusters_may_be_called_source_and_target_or_have_dots(path: Path) -> None:
    text = "clusters = source, target\nsource.bootstrap.servers = a:9092\ntarget.bootstrap.servers = b:9092\n"
    found = flow(path, text + "source->target.enabled = true\nsource.consumer.client.id = me\n", "")
    assert found.source == {"bootstrap.servers": "a:9092", "client.id": "me"}
    text = (
        "clusters = us.w, us\nus.bootstrap.servers = a:9092\nus.w.bootstrap.servers = b:9092\nus->us.w.enabled = true\n"
    )
    found = flow(path, text, "")
    assert (found.source["bootstrap.servers"], found.target["bootstrap.servers"]) == ("a:9092", "b:9092")


# clusterProps, then sourceConsumerConfig or targetProducerConfig, then the overrides of Connect.
@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("ssl.truststore.location = /top", "/top", "/top"),
        ("A.ssl.truststore.location = /a\nssl.truststore.location = /top", "/a", "/top"),
        ("A.consumer.ssl.truststore.location = /c\nA.ssl.truststore.location = /a", "/c", None),
        ("A.producer.ssl.truststore.location = /p", None, None),
        ("B.producer.ssl.truststore.location = /p\nB.ssl.truststore.location = /b", None, "/p"),
        ("A->B.consumer.ssl.truststore.location = /f\nA.ssl.truststore.location = /a", "/a", None),
        ("A->B.consumer.ssl.truststore.location = /f", "/f", None),
        ("A->B.source.consumer.ssl.truststore.location = /f\nA.consumer.ssl.truststore.location = /a", "/f", None),
        ("A->B.source.cluster.ssl.truststore.location = /f", "/f", None),
        ("A->B.target.producer.ssl.truststore.location = /f\nB.producer.ssl.truststore.location = /b", None, "/f"),
        ("A->B.producer.override.ssl.truststore.location = /o\nB.ssl.truststore.location = /b", None, "/o"),
        ("B->A.source.consumer.ssl.truststore.location = /f", None, None),
        ("consumer.ssl.truststore.location = /top", None, None),
    ],
)
def test_what_a_client_has(path: Path, text: str, source: str | None, target: str | None) -> None:
    found = flow(path, f"security.protocol = SSL\n{text}\n")
    assert (found.source.get("ssl.truststore.location"), found.target.get("ssl.truststore.location")) == (
        source,
        target,
    )


def test_settings_of_the_whole_cluster_hold_for_all_that_is_asked_of_it(path: Path) -> None:
    found = flow(path, "A.request.timeout.ms = 1000\nB.client.id = me\nA.consumer.request.timeout.ms = 2000\n")
    assert (found.source["request.timeout.ms"], found.target["client.id"]) == ("2000", "me")


def test_client_settings_without_meaning_are_left_out_and_told(path: Path) -> None:
    text = "A.consumer.fetch.min.bytes = 1\nB.producer.acks = all\nA.consumer.auto.offset.reset = earliest\nB.group.id = g\n"
    found = read(path, text)
    assert found.flows[0].source.keys() == found.flows[0].target.keys() == {"bootstrap.servers"}
    told = "A.consumer.fetch.min.bytes, B.producer.acks, B.group.id"
    assert found.warnings == (f"without effect here (tolerant_client/ops/mm2/README.md says why): {told}",)


def test_what_is_not_built_is_told_by_name_and_not_called_needless(path: Path) -> None:
    found = read(path, "A.consumer.client.rack = west\n")
    assert "client.rack" not in found.flows[0].source
    told = "A.consumer.client.rack (only leaders are read, in whatever rack (KIP-392))"
    assert found.warnings == (f"without effect, because it is not built: {told}",)


def test_one_warning_names_all_that_has_no_meaning(path: Path) -> None:
    text = (
        "offset.storage.topic = t\noffset.lag.max = 1\nA->B.offset-syncs.topic.location = target\nB.plugin.path = /x\n"
    )
    text += "exactly.once.source.support = enabled\nkey.converter.schemas.enable = false\nzookeeper.connect = z\n"
    (warning,) = read(path, text).warnings
    names = [line.split(" = ")[0] for line in text.splitlines()]
    assert warning.endswith(f": {', '.join(names)}")


def test_keys_where_mirrormaker_2_does_not_read_them_are_told(path: Path) -> None:
    found = read(path, "consumer.client.id = me\nA.replication.factor = 7\nA->B.ssl.truststore.location = /x\n")
    names = "consumer.client.id, A.replication.factor, A->B.ssl.truststore.location"
    assert found.warnings == (f"not read at this level, nor by MirrorMaker 2: {names}",)
    assert found.flows[0].replication_factor == 2


def test_connections_that_would_differ_are_told(path: Path) -> None:
    (warning,) = read(path, "A.admin.bootstrap.servers = other:9092\nB.consumer.bootstrap.servers = b:9092\n").warnings
    assert warning.endswith("; not used: A.admin.bootstrap.servers (line 5)")


def test_no_secret_is_in_a_repr_or_an_error(path: Path) -> None:
    text = "security.protocol = SASL_PLAINTEXT\nsasl.mechanism = PLAIN\n"
    text += f'sasl.jaas.config = {PLAIN} username="u" password="{CANARY}";\n'
    found = read(path, text)
    assert CANARY in found.flows[0].source["sasl.jaas.config"] and CANARY not in f"{found!r} {found.flows[0]}"
    wrong = refused(path, text.replace('username="u"', 'user="u"'))
    assert wrong.startswith("cluster A: A.sasl.jaas.config lacks username or password")
    assert "ssl.keystore.pasword (line 5)" in refused(path, f"A.ssl.keystore.pasword = {CANARY}\n")


def test_a_value_from_a_provider_is_not_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_TASKS", CANARY)
    text = "config.providers = e\nconfig.providers.e.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    assert "tasks.max (line 7) is a value from a config provider" in refused(
        path, f"{text}tasks.max = ${{e:MM2_TASKS}}\n"
    )


def test_our_own_keys(path: Path) -> None:
    text = (
        "tolerant.on.loss = fail, clicks.*=continue\nA->B.tolerant.gap.fill = records\ntolerant.on.oversized = pause\n"
    )
    found = flow(path, text + "A->B.tolerant.offsets = translated\ntolerant.throttle = 1000\n")
    assert found.policy.for_topic("A.orders").on_loss is LossPolicy.FAIL
    assert found.policy.for_topic("clicks-1").on_loss is LossPolicy.CONTINUE
    assert (found.policy.gap_fill, found.policy.on_oversized) == (GapFill.RECORDS, LossPolicy.PAUSE)
    assert (found.offsets, found.throttle_bytes) == ("translated", 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A->B.topic = x", "A->B.topic (line 5) is not a MirrorMaker 2 key; did you mean A->B.topics?"),
        ("sync.topic.config.enabled = x", "sync.topic.config.enabled (line 5) is not a MirrorMaker 2 key; did you mean sync.topic.configs.enabled?"),
        ("A.consumer.isolation = x", "did you mean A.consumer.isolation.level?"),
        ("tolerant.onloss = fail", "did you mean tolerant.on.loss?"),
        ("---%<---", "---%<--- (line 5) is not a MirrorMaker 2 key; tolerant_client/ops/mm2/README.md has all keys"),
        ("A->C.enabled = true", "A->C.enabled (line 5) does not name a flow between two of clusters = A, B"),
        ("A->A.enabled = true", "A->A.enabled (line 5) does not name a flow between two of clusters = A, B"),
        ("C.bootstrap.servers = c:9092", "C.bootstrap.servers (line 5) belongs to none of clusters = A, B; add its alias there"),
        ("enabled = true", "enabled (line 5) belongs to no flow; write A->B.enabled = true"),
        ("topics = .*  # all", "topics (line 5) has a # in its value"),
        ("topics = *.x", "topics (line 5): '*.x' is not a regular expression"),
        ("groups.exclude = \\\\p{Alpha}", "groups.exclude (line 5): "),
        ("A->B.enabled = yes", "A->B.enabled (line 5) is 'yes'; it must be false or true"),
        ("tasks.max = 0", "tasks.max (line 5) is '0'; it must be a whole number of at least 1"),
        ("replication.factor = -2", "replication.factor (line 5) is '-2'; it must be a whole number of at least 1"),
        ("emit.heartbeats.interval.seconds = 0", "emit.heartbeats.interval.seconds (line 5) is '0'"),
        ("emit.heartbeats.interval.seconds = 1.5", "emit.heartbeats.interval.seconds (line 5) is '1.5'"),
        ("use.defaults.from = both", "use.defaults.from (line 5) is 'both'; it must be source or target"),
        ("replication.policy.separator = /", "replication.policy.separator (line 5) is '/'; topic names have letters"),
        ("replication.policy.class = com.example.Names", "replication.policy.class (line 5) is 'com.example.Names'; it can be org.apache"),
        ("topic.filter.class = com.example.Filter", "topic.filter.class (line 5) can only be org.apache.kafka.connect.mirror.DefaultTopicFilter"),
        ("forwarding.admin.class = com.example.Admin", "can only be org.apache.kafka.clients.admin.ForwardingAdmin: no Java classes"),
        ("B.value.converter = org.apache.kafka.connect.json.JsonConverter", "records are copied as the bytes they are"),
        ("A->B.transforms = Insert", "A->B.transforms (line 5) is refused: records are copied as the bytes they are"),
        ("A->B.transforms.Insert.type = x", "A->B.transforms.Insert.type (line 5) is refused"),
        ("errors.tolerance = all", "errors.tolerance (line 5) is refused: records that the target rejects"),
        ("A.consumer.auto.offset.reset = latest", "A.consumer.auto.offset.reset (line 5) is refused: the mirror copies a partition from its first"),
        ("A.consumer.interceptor.classes = x", "A.consumer.interceptor.classes (line 5) is refused: no Java classes"),
        ("A.consumer.ssl.provider = x", "A.consumer.ssl.provider (line 5) is refused"),
        ("A.security.protocol = TLS", "cluster A: A.security.protocol must be one of PLAINTEXT"),
        ("B.ssl.keystore.type = BKS\nB.security.protocol = SSL", "cluster B: B.ssl.keystore.type must be one of"),
        ("tolerant.offsets = exact", "tolerant.offsets (line 5) is 'exact'; it must be identical or translated"),
        ("tolerant.on.loss = skip", "tolerant.on.loss (line 5): 'skip': 'skip' is none of fail, continue, pause"),
        ("tolerant.throttle = 0", "tolerant.throttle (line 5) is '0'"),
    ],
)  # fmt: skip
def test_what_is_refused(path: Path, text: str, message: str) -> None:
    assert message in refused(path, text + "\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A.bootstrap.servers = a:9092\n", "clusters is required"),
        (
            "clusters = A, B\nA.bootstrap.servers = a:9092\n",
            "B.bootstrap.servers is required: clusters (line 1) names 'B'",
        ),
        ("clusters = A B\n", "clusters (line 1) has 'A B'; an alias has letters"),
        ("clusters = A, B # two\n", "clusters (line 1) has a # in its value"),
        (AB.replace("true", "false"), "enables no flow; write A->B.enabled = true with two of A, B"),
        (AB.replace("a:9092", "<a>:9092"), "cluster A: A.bootstrap.servers has the invalid address '<a>:9092'"),
    ],
)
def test_files_that_cannot_be(path: Path, text: str, message: str) -> None:
    assert message in refused(path, text, "")


def test_servers_at_the_top_are_for_all_clusters_that_have_none(path: Path) -> None:
    found = flow(
        path, "clusters = A, B\nbootstrap.servers = x:9092\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n", ""
    )
    assert (found.source["bootstrap.servers"], found.target["bootstrap.servers"]) == ("x:9092", "b:9092")


def test_stock_classes_and_empty_transforms_are_taken(path: Path) -> None:
    text = "topic.filter.class = org.apache.kafka.connect.mirror.DefaultTopicFilter\ntransforms =\nerrors.tolerance = none\n"
    text += (
        "key.converter = org.apache.kafka.connect.converters.ByteArrayConverter\nA.ssl.trustmanager.algorithm = PKIX\n"
    )
    assert read(path, text).warnings == ()


def test_circles_and_shared_topics_are_refused(path: Path) -> None:
    both = "B->A.enabled = true\n"
    assert len(read(path, both).flows) == 2
    assert refused(path, both + IDENTITY).startswith("A->B and B->A could copy topics in a loop for ever")
    assert len(read(path, both + IDENTITY + "A->B.topics = a-.*\nB->A.topics = b-.*\n").flows) == 2
    assert "A->B and B->C and C->A" in refused(path, f"B->C.enabled = true\nC->A.enabled = true\n{IDENTITY}", ABC)
    shared = refused(path, f"C->B.enabled = true\n{IDENTITY}", ABC)
    assert shared.startswith("A->B and C->B could write to the same topics of B")


def test_links_with_one_name_are_refused(path: Path) -> None:
    names = ("a", "b-c", "a-b", "c")
    text = f"clusters = {', '.join(names)}\n" + "".join(f"{name}.bootstrap.servers = {name}:9092\n" for name in names)
    long = "a" * 113
    assert "a name longer than 225 letters" in refused(
        path, f"clusters={long},{long}b\nbootstrap.servers=x:1\n{long}->{long}b.enabled=true\n", ""
    )
    assert "would both be link a-b-c" in refused(path, text + "a->b-c.enabled = true\na-b->c.enabled = true\n", "")


def test_the_way_back_that_another_process_runs_is_a_circle_too(path: Path) -> None:
    path.write_text(AB + "B->A.enabled = true\n" + IDENTITY)
    with pytest.raises(OptionError, match="A->B and B->A could copy topics in a loop for ever"):
        read_flows(path, ["B"])


def test_where_a_cluster_that_is_no_source_would_be_read_from_does_not_matter(path: Path) -> None:
    assert len(read(path, "B.consumer.auto.offset.reset = latest\n").flows) == 1


def test_topics_that_the_target_lacks_are_made_as_the_file_says(path: Path) -> None:
    text = "replication.factor = 3\nuse.defaults.from = source\nconfig.properties.exclude = x\n"
    creation = flow(path, text).link_topics.creation
    assert (creation.replication_factor, creation.config_exclude, creation.use_defaults_from) == (3, ("x",), "source")


def test_what_a_flow_takes_of_its_source(path: Path) -> None:
    topics = flow(path, "A->B.topics = orders.*\n").link_topics
    assert [topics.takes(name) for name in ("orders-1", "B.orders", "clicks", "heartbeats")] == [
        True,
        False,
        False,
        True,
    ]
    assert not flow(path, "topics = x\nheartbeats.replication.enabled = false\n").link_topics.takes("heartbeats")
