"""What status, plan, promotion and the copiers tell an operator, on real brokers that refuse, hang, or hold transactions open."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import kafka
import pytest
from kafka.admin import NewTopic
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from support.mirror_link import (
    append_records,
    both,
    create_topic,
    delete_topic,
    ends,
    make_anew,
    mirror,
    prepare,
    prepare_translated_link,
)
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.engine.identical.offsets import identical_offsets
from tolerant_client.mirror.engine.limits import Progress
from tolerant_client.mirror.engine.link_copier import LinkCopier
from tolerant_client.mirror.engine.translated.offsets import translated_offsets
from tolerant_client.mirror.life.failover import failover
from tolerant_client.mirror.life.plan_report import plan_everything
from tolerant_client.mirror.life.promotion import promote
from tolerant_client.mirror.life.status import LinkStatus, read_status
from tolerant_client.mirror.state.claims import ClaimsLog
from tolerant_client.mirror.state.claims_record import COPIER, ClaimsRecord, Holder, Waiting
from tolerant_client.mirror.state.control_topic import update_control
from tolerant_client.mirror.state.health import DELETED_ON_SOURCE, Health
from tolerant_client.mirror.verify.outcome import Outcome
from tolerant_client.mirror.verify.verification import verify
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def status_of(source: str, target: str, link: str) -> LinkStatus:
    with both(source, target) as (origin, copy):
        return origin.run(read_status, origin, copy, link)


def texts(found: LinkStatus, health: Health) -> list[str]:
    return [reason.text for reason in found.reasons if reason.health is health]


@contextlib.contextmanager
def open_transaction(servers: str, topic: str, transactional_id: str, **config: Any) -> Iterator[kafka.KafkaProducer]:
    """A transaction that is open in partition 0, with one record."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id, **config)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).get(20)
        yield producer
        producer.commit_transaction()
    finally:
        producer.close(timeout=5)


# -- a source that is not the link's -------------------------------------------


@pytest.mark.parametrize("is_translated", [False, True], ids=["identical", "translated"])
@pytest.mark.parametrize("has_topic", [True, False], ids=["the same topic", "no such topic"])
def test_a_source_that_the_link_does_not_copy_is_named_first_and_nothing_is_advised_for_its_topics(
    source: str, target: str, is_translated: bool, has_topic: bool
) -> None:
    """Also once the link was promoted."""
    topic = link = f"elsewhere-{is_translated}-{has_topic}".lower()
    create_topic(source, topic)
    append_records(source, topic, 5)
    mirror(source, target, topic, link, is_translated=is_translated)
    with both(source, target) as (origin, there):
        here = origin.run(origin.cluster_id)
        there.run(update_control, there, link, partial(replace, source_cluster_id="another-cluster"))
    if has_topic:
        make_anew(source, topic)
    else:
        delete_topic(source, topic)
    offsets = "translated" if is_translated else "identical"
    commands: list[list[str]] = [
        ["status"],
        ["promote", "--dry-run"],
        ["plan", "--topics", topic, "--offsets", offsets],
        ["verify"],
        ["verify", "--topics", topic],
        ["doctor", "--seconds", "0"],
        ["mirror", "--topics", topic, "--offsets", offsets, "--tasks", "0", "--once"],
    ]
    commands += [["translate", "--group", "any"]] if is_translated else []
    require_refused(
        source,
        target,
        link,
        commands,
        f"Link {link} copies from cluster another-cluster, and this source is cluster {here}",
    )
    with both(target, target) as (there, _):
        assert there.run(failover, there, link).is_done
    commands = [words for words in commands if words[0] not in ("plan", "mirror")]  # they refuse it as promoted
    require_refused(
        source,
        target,
        link,
        commands,
        f"Link {link} has copied from cluster another-cluster, and this source is cluster {here}",
    )


def require_refused(source: str, target: str, link: str, commands: list[list[str]], told: str) -> None:
    """Each of these commands refuses the source, as `told`."""
    for words in commands:
        done = CliRunner().invoke(app, [*words, "--json", "--source", source, "--target", target, "--link", link])
        if words[0] == "doctor":
            errors = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
            assert (done.exit_code, [one["evidence"] for one in errors]) == (1, [told]), done.output
            continue
        is_refused = isinstance(done.exception, OptionError) or done.exit_code == 2
        said = text_of(done.exception) if isinstance(done.exception, OptionError) else done.stderr
        assert is_refused and f"{told}: check --source; " in said and "delete" not in said, (words, done.output)


# -- a transaction that hangs open on the source ------------------------------


@pytest.mark.long
def test_an_open_transaction_is_named_with_all_that_waits_for_it(source: str, target: str) -> None:
    create_topic(source, "held")
    append_records(source, "held", 50)
    with open_transaction(source, "held", "payments-1", transaction_timeout_ms=600_000):
        append_records(source, "held", 1_000, first=50)  # committed, after its first record
        time.sleep(10.5)  # a younger one is nothing to tell of
        mirror(source, target, "held", "held")
        assert ends(target, "held") == [50]
        found = status_of(source, target, "held")
        (topic,) = found.topics
        assert (topic.lag, topic.open_offsets, found.exit_code) == (1_001, 1_001, 3)
        (text,) = texts(found, Health.WAITING)
        assert text.startswith("held-0: 1,001 offsets from 50 on wait for an open transaction (producer id ")
        assert "transactional.id payments-1; since 20" in text
        abort = f"kafka-transactions.sh --bootstrap-server {source} abort --topic held --partition 0 --start-offset 50"
        assert text.endswith(f"or abort it: {abort}")
        (held,) = found.to_json()["open_transactions"]
        assert (held["transactional_id"], held["offsets"], held["command"]) == ("payments-1", 1_001, abort)
        with both(source, target) as (origin, copy):
            plan = origin.run(plan_everything, origin, copy, "held", "held")
            assert plan.exit_code == 3 and [str(one) for one in plan.held] == [text]
            told: list[str] = []

            async def dry() -> Any:
                return await promote(origin, copy, "held", is_dry_run=True, tell=told.append)

            began = time.monotonic()
            report = origin.run(dry)
            assert time.monotonic() - began < 20 and told == []
            assert report.exit_code == 3 and text in report.blockers[0]
    mirror(source, target, "held", "held")
    assert ends(target, "held") == ends(source, "held")
    found = status_of(source, target, "held")
    assert (found.topics[0].lag, found.topics[0].open_offsets, found.open_transactions) == (0, 0, ())


def test_a_transaction_that_was_begun_just_now_is_none_to_wait_for(source: str, target: str) -> None:
    create_topic(source, "brief")
    append_records(source, "brief", 5)
    mirror(source, target, "brief", "brief")
    with open_transaction(source, "brief", "brief-1"):
        with both(source, target) as (origin, copy):
            assert origin.run(plan_everything, origin, copy, "brief", "brief").exit_code == 0
        found = status_of(source, target, "brief")
        assert texts(found, Health.WAITING) == [] and found.topics[0].open_offsets == 1


# -- topics that the last start of a link did not have ------------------------


def test_a_failover_fences_what_a_former_start_of_the_link_has_copied(source: str, target: str) -> None:
    """Whatever the control remembers: what the logs say is fenced, what is of nobody is left alone."""
    for topic in ("former", "later"):
        create_topic(source, topic)
        append_records(source, topic, 100)
    create_topic(target, "alien")
    append_records(target, "alien", 10)
    mirror(source, target, "former", "narrowed")
    mirror(source, target, "later", "narrowed")
    forget_topics(target, "narrowed", "later")
    with both(source, target) as (_, copy):

        async def run(is_dry_run: bool) -> Any:
            return await failover(copy, "narrowed", is_dry_run=is_dry_run)

        dry = copy.run(run, True)
        report = copy.run(run, False)
    for found in (dry, report):
        assert [(p.topic, p.copied_until) for p in found.partitions] == [("former", 100), ("later", 100)]
        assert found.warnings[0].startswith("former-0 carry records of the link, though")
    assert report.is_done and ends(target, "former") == [101] and ends(target, "alien") == [10]


def forget_topics(target: str, link: str, topics: str) -> None:
    """Leaves in the link's control what a start with these topics alone would have written."""
    from tolerant_client.mirror.state.control_topic import update_control
    from tolerant_client.mirror.state.topic_filter import LinkTopics

    with both(target, target) as (_, copy):
        copy.run(update_control, copy, link, lambda now: replace(now, topics=LinkTopics.of(topics).to_json()))


# -- brokers that refuse, or hang ---------------------------------------------


@pytest.fixture(scope="module")
def three(start_cluster: Callable[..., KafkaCluster]) -> KafkaCluster:
    """Three nodes; the last one may be stopped."""
    config = {
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        "replica.lag.time.max.ms": "5000",
    }
    return start_cluster(nodes=3, heap="256m", broker_config=config)


def create_wide(cluster: KafkaCluster, name: str, partitions: int, replicas: int, **config: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, replicas, topic_configs=settings)])
    finally:
        admin.close()


def copy_for(
    source: str, target: str, topic: str, seconds: float, *, is_translated: bool
) -> dict[TopicPartition, Progress]:
    """A mirror that follows, for so long."""
    with both(source, target) as (origin, copy):

        async def run() -> dict[TopicPartition, Progress]:
            copier: LinkCopier
            if is_translated:
                await prepare_translated_link(origin, copy, topic, f"{topic}-link")
                copier = LinkCopier(origin, copy, translated_offsets(), link=f"{topic}-link")
            else:
                prepared = prepare(source, target, topic, f"{topic}-link")
                copier = LinkCopier(origin, copy, identical_offsets(prepared.producer_id), link=f"{topic}-link")
            return await copier.copy_each({TopicPartition(topic, 0): None}, hold_ms=int(seconds * 1000), lease_ms=1_000)

        return origin.run(run)


@pytest.mark.long
def test_a_mirror_that_goes_nowhere_says_so_with_the_brokers_reason(source: str, three: KafkaCluster) -> None:
    for topic in ("stuck", "stuck-translated"):
        create_topic(source, topic)
        append_records(source, topic, 100)
        create_wide(three, topic, 1, 3, min_insync_replicas="3")
    target = three.bootstrap_servers
    with both(source, target) as (origin, copy):
        origin.run(prepare_translated_link, origin, copy, "stuck-translated", "stuck-translated-link")
    three.stop(3)
    try:
        time.sleep(8)  # until it is in no set of in-sync replicas
        for topic in ("stuck", "stuck-translated"):
            began_ms = int(time.time() * 1000)
            (done,) = copy_for(source, target, topic, 20, is_translated=topic != "stuck").values()
            assert done.wait is not None and done.error is None and done.blocked_by is None, done
            assert "NotEnoughReplicas" in done.wait.reason
            assert began_ms - 1_000 <= done.wait.since_ms <= began_ms + 15_000
        found = status_of(source, target, "stuck-link")
        assert found.exit_code == 3 and found.topics[0].lag == 100
    finally:
        three.restart(3)
    (done,) = copy_for(source, target, "stuck", 15, is_translated=False).values()
    assert (done.acked, done.wait) == (100, None)


def test_of_a_broker_that_hangs_the_partitions_are_unknown_and_the_others_are_told_soon(
    source: str, three: KafkaCluster
) -> None:
    create_topic(source, "wide", 6)
    append_records(source, "wide", 20, partitions=6)
    create_wide(three, "wide", 6, 1)
    target = three.bootstrap_servers
    mirror(source, target, "wide", "wide")
    before = status_of(source, target, "wide")
    assert (before.topics[0].lag, before.topics[0].unknown) == (0, ())
    with both(source, target) as (origin, copy):

        async def led_by_hanging() -> list[int]:
            return [n for n in range(6) if await copy.leader(TopicPartition("wide", n)) == 3]

        hidden = copy.run(led_by_hanging)
    assert 0 < len(hidden) < 6
    three.pause(3)
    try:
        began = time.monotonic()
        found = status_of(source, target, "wide")
        seconds = time.monotonic() - began
    finally:
        three.resume(3)
    assert list(found.topics[0].unknown) == hidden and found.topics[0].source_end == 20 * (6 - len(hidden))
    assert found.exit_code == 3
    assert any(f"wide-{hidden[0]}" in text for text in texts(found, Health.UNKNOWN)), found.reasons
    assert seconds < 75, seconds  # 30 s of it are kafka-python's own patience with a connection


# -- a topic that the source has deleted --------------------------------------


def test_a_topic_that_the_source_has_deleted_is_named_by_every_command(source: str, target: str) -> None:
    for name in ("deleted.kept", "deleted.gone"):
        create_topic(source, name)
        append_records(source, name, 50)
    mirror(source, target, r"deleted\..*", "deleted")
    delete_topic(source, "deleted.gone")
    with both(source, target) as (origin, copy):
        verified = origin.run(verify, origin, copy, r"deleted\..*")
        plan = origin.run(plan_everything, origin, copy, "deleted", r"deleted\..*")
        report = origin.run(partial(promote, is_dry_run=True), origin, copy, "deleted")
    errors = {part.topic: part.error for part in verified.partitions}
    assert errors == {"deleted.kept": None, "deleted.gone": "the source has no such topic"}
    assert (verified.outcome, verified.outcome.exit_code, verified.compared) == (Outcome.NOT_COMPARED, 2, verified.held)
    (refusal,) = plan.refusals
    assert (refusal, plan.exit_code) == (f"deleted.gone: {DELETED_ON_SOURCE}", 3)
    found = status_of(source, target, "deleted")
    assert [(t.topic, t.unknown) for t in found.topics] == [("deleted.gone", (0,)), ("deleted.kept", ())]
    assert found.exit_code == 3
    assert texts(found, Health.BLOCKED) == [f"deleted.gone-0: {DELETED_ON_SOURCE}"]
    rows = {p.topic: (p.copied_until, p.lag) for p in report.partitions}
    assert rows == {
        "deleted.gone": (ends(target, "deleted.gone")[0], None),
        "deleted.kept": (ends(target, "deleted.kept")[0], 0),
    }
    (warning,) = report.warnings
    assert "deleted.gone-0" in warning and "not among the topics" not in warning


# -- whether a mirror runs ----------------------------------------------------


def test_status_names_the_mirror_that_runs_and_says_when_none_was_seen(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tolerant_client.mirror.life import mirrors as module

    create_topic(source, "seen")
    append_records(source, "seen", 10)
    mirror(source, target, "seen", "seen")
    now_ms = int(time.time() * 1000)
    holder = Holder("one", "seen", "run", "m1", os.getpid(), now_ms - 60_000, COPIER)
    renewing = iter(range(1, 1_000))
    holds = frozenset({TopicPartition("seen", 0)})
    records = [ClaimsRecord(holder, 1, names=holds)]

    async def claims(_: Any) -> ClaimsLog:
        log = ClaimsLog()
        for record in records:
            log.read(replace(record, sequence=next(renewing, 1_000)), now_ms, 0)
        return log

    monkeypatch.setattr(module, "read_claims", claims)
    found = status_of(source, target, "seen")
    assert (found.health, found.exit_code) == (Health.HEALTHY, 0), found.reasons
    assert [(run.host, run.pid, run.is_alive) for run in found.mirrors] == [("m1", os.getpid(), True)]
    waiting = {TopicPartition("seen", 0): Waiting("append answered X", now_ms - 20_000)}
    records[:] = [ClaimsRecord(holder, 1, names=holds, waiting=waiting, waiting_count=1)]
    found = status_of(source, target, "seen")
    assert found.health is Health.WAITING and "append answered X" in found.findings[0]
    blocked = {TopicPartition("seen", 0): Waiting("a record is too large", now_ms - 20_000, is_blocked=True)}
    records[:] = [ClaimsRecord(holder, 1, names=holds, waiting=blocked, waiting_count=1)]
    found = status_of(source, target, "seen")
    assert found.health is Health.BLOCKED and "a record is too large" in found.findings[0]
    renewing = iter(())  # it says nothing more, and the broker's clock is before ours
    now_ms += 50_000
    found = status_of(source, target, "seen")
    assert (found.health, found.exit_code) == (Health.UNKNOWN, 3)
    assert (
        "no mirror of link seen is seen at work: the last one, on m1" in found.findings[0]
        and "was last seen at 20" in found.findings[0]
    )
    records.clear()
    assert "has been seen in the last hour" in status_of(source, target, "seen").findings[0]
