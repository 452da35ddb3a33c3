"""Which settings of a topic follow the source's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tolerant_client.cluster.admin.configs import Setting
from tolerant_client.mirror.follow import configs
from tolerant_client.mirror.follow.configs import ConfigChange, decide_changes
from tolerant_client.mirror.state.topic_filter import CONFIG_PROPERTIES_EXCLUDE, TopicFilter

OWN, DYNAMIC_DEFAULT, FILE, DEFAULT = 1, 3, 4, 5
EXCLUDED = TopicFilter(CONFIG_PROPERTIES_EXCLUDE)


@pytest.mark.parametrize(
    ("name", "source", "target", "use_defaults_from", "expected"),
    [
        ("retention.ms", Setting("5", OWN), Setting("7", OWN), "target", ("7", "5")),
        ("retention.ms", Setting("5", OWN), Setting("5", OWN), "target", None),
        ("retention.ms", Setting("5", OWN), Setting("5", DEFAULT), "target", ("5", "5")),  # the default may change
        ("retention.ms", Setting("5", DYNAMIC_DEFAULT), Setting("7", DEFAULT), "target", ("7", "5")),
        ("retention.ms", Setting("5", DYNAMIC_DEFAULT), Setting("5", DEFAULT), "target", None),
        ("retention.ms", Setting("5", FILE), Setting("7", OWN), "source", None),
        ("retention.ms", Setting("5", DEFAULT), Setting("7", OWN), "target", ("7", None)),
        ("retention.ms", Setting("5", DEFAULT), Setting("7", FILE), "target", None),
        ("retention.ms", Setting("5", DEFAULT), Setting("7", FILE), "source", ("7", "5")),
        ("retention.ms", Setting("5", DEFAULT), Setting("5", DEFAULT), "source", None),
        ("cleanup.policy", Setting("compact", OWN), Setting("delete", OWN), "target", ("delete", "compact")),
        ("cleanup.policy", Setting("compact", FILE), Setting("delete", DEFAULT), "target", ("delete", "compact")),
        ("cleanup.policy", Setting("delete", DEFAULT), Setting("delete", OWN), "target", None),
        ("cleanup.policy", Setting("delete", DEFAULT), Setting("compact", OWN), "target", ("compact", "delete")),
        ("max.message.bytes", Setting("9000000", OWN), Setting("1048588", DEFAULT), "target", ("1048588", "9000000")),
        ("max.message.bytes", Setting("1000012", DEFAULT), Setting("1048588", OWN), "target", None),
        ("max.message.bytes", Setting("1000012", DEFAULT), Setting("500", OWN), "target", ("500", "1048588")),
        ("message.timestamp.type", Setting("LogAppendTime", OWN), Setting("CreateTime", OWN), "target", None),
        ("message.timestamp.before.max.ms", Setting("5", OWN), Setting("9", OWN), "target", None),
        ("message.timestamp.after.max.ms", Setting("5", OWN), Setting("9", DEFAULT), "source", None),
        ("remote.storage.enable", Setting("true", OWN), Setting("false", DEFAULT), "target", None),
        ("unclean.leader.election.enable", Setting("true", OWN), Setting("false", DEFAULT), "target", None),  # excluded
        ("min.insync.replicas", Setting("2", OWN), Setting("1", DEFAULT), "target", None),  # excluded
        ("confluent.secret", Setting("x", OWN, is_sensitive=True), Setting("y", OWN), "target", None),
        ("fixed", Setting("x", OWN, is_read_only=True), Setting("y", OWN), "target", None),
    ],
)
def test_a_setting(
    name: str, source: Setting, target: Setting, use_defaults_from: str, expected: tuple[str, str | None] | None
) -> None:
    changes, left = decide_changes(
        "A.t", {name: source}, {name: target}, 3, exclude=EXCLUDED, use_defaults_from=use_defaults_from
    )
    assert [(c.topic, c.name, c.before, c.after) for c in changes] == (
        [] if expected is None else [("A.t", name, *expected)]
    )
    assert not left


def test_what_is_excluded_may_be_quoted_as_in_every_list_of_the_file() -> None:
    exclude = TopicFilter((r"\Qretention.ms\E",))
    given = {name: Setting("5", OWN) for name in ("retention.ms", "retentionXms")}
    present = {name: Setting("9", OWN) for name in given}
    changes, _ = decide_changes("A.t", given, present, 3, exclude=exclude)
    assert [change.name for change in changes] == ["retentionXms"]


@pytest.mark.parametrize(("replicas", "after"), [(1, "1"), (2, "2"), (3, "3"), (5, "3")])
def test_min_insync_replicas_are_never_more_than_replicas(replicas: int, after: str) -> None:
    wanted, present = {"min.insync.replicas": Setting("3", OWN)}, {"min.insync.replicas": Setting("9", OWN)}
    changes, _ = decide_changes("t", wanted, present, replicas)
    assert [change.after for change in changes] == [after]


class Broker:
    """Refuses some settings, and with them all others of their request for the topic."""

    def __init__(self, refused: dict[str, int]) -> None:
        self.refused = refused
        self.asked: list[list[str]] = []

    async def insist(self, what: str, attempt: Any) -> Any:
        return await attempt()

    async def send(self, request: Any) -> Any:
        responses = []
        for resource in request.resources:
            names = [config.name for config in resource.configs]
            self.asked.append(names)
            code = next((self.refused[name] for name in names if name in self.refused), 0)
            message = f"it takes no {names[-1]}" if code else None
            responses.append(
                SimpleNamespace(resource_name=resource.resource_name, error_code=code, error_message=message)
            )
        return SimpleNamespace(responses=responses)


def altered(broker: Broker, changes: list[ConfigChange]) -> Any:
    with pytest.raises(StopIteration) as stopped:
        configs._alter(broker, changes, False).send(None)  # type: ignore[arg-type]
    return stopped.value.value


def test_a_value_that_is_refused_holds_up_no_other() -> None:
    broker = Broker({"bad": 40})
    changes = [ConfigChange(topic, name, "1", "2") for topic, name in (("t", "bad"), ("t", "good"), ("u", "good"))]
    changed, left = altered(broker, changes)
    assert [(c.topic, c.name) for c in changed] == [("t", "good"), ("u", "good")]
    assert [(x.name, x.reason) for x in left] == [("t bad", "refused")] and "it takes no bad" in left[0].why
    assert broker.asked == [["bad", "good"], ["good"], ["bad"], ["good"]]


def test_a_topic_whose_settings_are_not_ours_to_change_is_asked_for_once() -> None:
    broker = Broker({"a": 29})  # TOPIC_AUTHORIZATION_FAILED
    changed, left = altered(broker, [ConfigChange("t", name, "1", "2") for name in "ab"])
    assert not changed and [x.name for x in left] == ["t"] and "grant AlterConfigs" in left[0].why
    assert broker.asked == [["a", "b"]]


def test_what_stays_different_is_said() -> None:
    source = {
        "max.message.bytes": Setting("1000", OWN),
        "of.a.newer.kafka": Setting("x", OWN),
        "default.of.a.newer.kafka": Setting("x", DEFAULT),
    }
    changes, left = decide_changes("t", source, {"max.message.bytes": Setting("2000", OWN)}, 1)
    assert not changes
    assert [(x.name, x.reason) for x in left] == [("t max.message.bytes", "kept"), ("t of.a.newer.kafka", "unknown")]
