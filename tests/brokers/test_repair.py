"""The control of a link that something else has written over, on a real target: what `repair` gives back, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import append_records, compare, create_topic, mirror
from tolerant_client.cluster.admin.topics import delete_topics
from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError
from tolerant_client.mirror.life.listing import list_links
from tolerant_client.mirror.state.claims_record import MIRROR, ClaimsRecord, Holder, encode_claims
from tolerant_client.mirror.state.claims_topic import claims_topic
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC, encode_control
from tolerant_client.mirror.state.control_topic import control_topic, read_control, update_control
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.ops.service.run_claim import RunClaim

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NEWER = b'{"version": 2, "is_promoted": true}'


def on(target: str, function: Any, *args: Any) -> Any:
    with Cluster({"bootstrap_servers": target}, name="target") as cluster:
        return cluster.run(function, cluster, *args)


def log_end(target: str) -> int:
    return int(on(target, lambda cluster: control_topic(cluster).end()))


def write(target: str, key: str, value: bytes) -> None:
    on(target, lambda cluster: control_topic(cluster).put(key.encode(), value))


def repair(target: str, link: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["repair", "--target", target, "--link", link, "--json", *options])
    if isinstance(done.exception, OptionError):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def begun(source: str, target: str, request: pytest.FixtureRequest) -> tuple[str, LinkControl]:
    """A link with what it has written down."""
    name = f"repair-{abs(hash(request.node.name)) % 10**6}"
    create_topic(source, name)
    append_records(source, name, 100)
    mirror(source, target, name, name)
    return name, on(target, read_control, name)


def test_what_a_link_has_written_down_is_written_once_more_and_nothing_is_forgotten(
    source: str, target: str, begun: tuple[str, LinkControl]
) -> None:
    link, before = begun
    assert before.begun and before.producer_ids
    on(target, update_control, "another", lambda now: LinkControl(bytes_per_s=7))
    write(target, link, b"rubbish")
    with pytest.raises(OptionError, match=f"run tolerant-kafka repair --target {target} --link {link}$"):
        on(target, read_control, link)
    assert repair(target, link, "--dry-run")[0] == 0
    code, told = repair(target, link)
    assert (code, told["is_done"], told["is_restored"], told["forgotten"]) == (0, True, True, "")
    assert on(target, read_control, link) == before and on(target, read_control, "another") == LinkControl(
        bytes_per_s=7
    )
    end = log_end(target)
    assert repair(target, link)[1]["unreadable"] is None and log_end(target) == end
    append_records(source, link, 10, first=100)
    assert mirror(source, target, link, link)[TopicPartition(link, 0)].acked == 110
    with pytest.raises(OptionError, match="says nothing of link no-such-link"):
        repair(target, "no-such-link")


def test_records_under_a_name_that_no_link_can_have_change_nothing(
    source: str, target: str, begun: tuple[str, LinkControl]
) -> None:
    link, control = begun
    write(target, "no link", encode_control(control, 1))
    write(target, "no other", NEWER.replace(b"true", b"false").replace(b"}", b', "source_cluster_id": "A"}'))
    stranger = ClaimsRecord(Holder("stranger", "no link", "run-1", "h", 1, 0, MIRROR), 1, is_end=True)
    on(target, lambda cluster: claims_topic(cluster).put(b"stranger", encode_claims(stranger)))
    append_records(source, link, 10, first=100)
    assert mirror(source, target, link, link)[TopicPartition(link, 0)].acked == 110
    found = {one.link for one in on(target, list_links).links}
    assert link in found and not any(name.startswith("no ") for name in found)


@pytest.mark.long
def test_what_is_forgotten_is_named_and_forgotten_only_when_asked(
    source: str, target: str, begun: tuple[str, LinkControl]
) -> None:
    link, before = begun
    write(target, link, NEWER)
    code, told = repair(target, link)
    assert (code, told["is_done"]) == (3, False) and "what a newer tolerant-client has written" in told["forgotten"]
    with pytest.raises(OptionError, match="install that version here"):
        on(target, read_control, link)
    assert repair(target, link, "--forget")[0] == 0 and on(target, read_control, link) == before
    on(target, delete_topics, [CONTROL_TOPIC])  # as after the topic was compacted: nothing of the link is left but this
    on(target, update_control, "another", lambda now: LinkControl(bytes_per_s=7))
    write(target, link, b"rubbish")
    code, told = repair(target, link)
    assert (code, told["is_restored"]) == (3, False)
    assert all(word in told["forgotten"] for word in ("promoted", "paused", "topics", "producer ids", "failback"))
    assert repair(target, link, "--forget")[0] == 0
    assert (on(target, read_control, link), on(target, read_control, "another")) == (
        LinkControl(),
        LinkControl(bytes_per_s=7),
    )
    append_records(source, link, 10, first=100)
    mirror(source, target, link, link)
    assert compare(source, target, link).identical


def test_nothing_is_repaired_while_a_mirror_of_the_link_runs(target: str, begun: tuple[str, LinkControl]) -> None:
    link, before = begun
    write(target, link, b"rubbish")
    with RunClaim({"bootstrap.servers": target}, link, "run") as claim:
        claim.take([link])
        end = log_end(target)
        with pytest.raises(OptionError, match=f"A mirror of link {link} runs on .*: stop it"):
            repair(target, link)
        assert log_end(target) == end
    assert repair(target, link)[0] == 0 and on(target, read_control, link) == before


@pytest.mark.long
def test_the_record_that_is_written_counts_before_the_one_that_it_repeats(
    target: str, begun: tuple[str, LinkControl]
) -> None:
    link, before = begun
    write(target, link, encode_control(before, 1, 0))
    write(target, link, b"rubbish")
    assert repair(target, link)[0] == 0
    assert on(target, read_control, link) == before
    on(target, update_control, link, lambda now: LinkControl(bytes_per_s=9))
    assert on(target, read_control, link).bytes_per_s == 9
