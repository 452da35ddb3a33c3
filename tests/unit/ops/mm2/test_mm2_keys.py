"""The table of MirrorMaker 2's keys: none of Kafka's is missing, and the page agrees with the code."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from support.tree import SUPPORT
from tolerant_client.ops.mm2 import keys
from tolerant_client.ops.mm2.keys import CLIENT, FLOW, GLOBAL, OURS, WORKER, Fate

ALL = (*GLOBAL, *FLOW, *OURS, *WORKER, *CLIENT)
README = Path(keys.__file__).with_name("README.md")
KAFKA = SUPPORT / "mm2_examples" / "kafka_4_2_keys.txt"

# FEATURES: what MirrorMaker 2 can be told, beside what is in the classes of KAFKA.
FEATURES = [
    "A->B.enabled",
    "topics.blacklist",
    "groups.blacklist",
    "config.properties.blacklist",
    "transforms.InsertSource.type",
    "predicates.IsFoo.type",
    "config.providers.file.class",
    "config.providers.file.param.allowed.paths",
    "topic.creation.default.partitions",
    "key.converter.schemas.enable",
    "config.storage.cleanup.policy",
    "listeners.https.ssl.keystore.location",
    "transaction.boundary.interval.ms",
]


def kafka_names() -> list[tuple[str, str]]:
    parser = configparser.RawConfigParser(allow_no_value=True, delimiters=("\n",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read(KAFKA)
    return [(section, name) for section in parser.sections() for name in parser[section]]


def test_every_name_of_kafkas_classes_is_in_the_table() -> None:
    names = kafka_names()
    assert len({section for section, _ in names}) == 10 and len(names) > 500
    assert [(section, name) for section, name in names if keys.find(name, ALL) is None] == []


@pytest.mark.parametrize("name", FEATURES)
def test_every_other_feature_is_in_the_table(name: str) -> None:
    assert keys.find(name.removeprefix("A->B."), ALL) is not None


def test_the_page_has_the_table() -> None:
    assert keys.table() in README.read_text(), "python -m tolerant_client.ops.mm2.keys prints the table for the page"


def test_every_key_that_is_not_used_says_why() -> None:
    assert [key.name for key in ALL if key.fate is not Fate.SUPPORTED and not key.why] == []
    assert [key.name for key in ALL if not key.why] == []


def test_no_key_is_twice_in_a_section() -> None:
    for section in keys.SECTIONS.values():
        names = [key.name for key in section]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("sync.topic.config.enabled", "sync.topic.configs.enabled"), ("max.tasks", "tasks.max"), ("qqqqqqq", None)],
)
def test_the_nearest_name(wrong: str, right: str | None) -> None:
    assert keys.nearest(wrong, [key.name for key in FLOW]) == right


def test_a_family_takes_what_begins_like_it_and_the_longest_one_wins() -> None:
    found = keys.find("offset.storage.cleanup.policy", WORKER)
    assert found is not None and found.name == "offset.storage.*"
    found = keys.find("offset.storage.topic", WORKER)
    assert found is not None and found.name == "offset.storage.topic"
    assert keys.find("transforms.", FLOW) is None
