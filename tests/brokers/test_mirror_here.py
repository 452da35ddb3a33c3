"""`mirror --tasks 0`: the mirror in the process of its command, without Spark and Java."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from functools import partial

import kafka
import pytest

from support.mirror_link import append_records, compare, create_topic, delete_records, ends, losses, make_anew
from support.settled import until

WITHOUT_JAVA = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}


def command(source: str, target: str, topic: str, *more: str) -> list[str]:
    link = ["--source", source, "--target", target, "--topics", topic, "--link", topic, "--tasks", "0"]
    return [sys.executable, "-m", "spark_integration.cli.app", "mirror", *link, *more]


def test_once_copies_all_without_java(source: str, target: str) -> None:
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic, 3)
    append_records(source, topic, 300, partitions=3)
    done = subprocess.run(
        command(source, target, topic, "--once", "--json"),
        env=WITHOUT_JAVA,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["offsets"] == 900
    assert compare(source, target, topic).identical


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_arrives_is_copied_until_a_signal_asks_for_a_stop_and_the_next_one_waits_for_nobody(
    source: str, target: str, number: signal.Signals
) -> None:
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic, 2)
    append_records(source, topic, 100, partitions=2)
    mirror = subprocess.Popen(command(source, target, topic), env=WITHOUT_JAVA, stderr=subprocess.PIPE, text=True)
    try:
        for copied in (100, 200):
            deadline = time.monotonic() + 30
            while (found := ends(target, topic, 2)) != [copied] * 2 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert found == [copied] * 2, mirror.poll()
            append_records(source, topic, 100, first=copied, partitions=2)
        mirror.send_signal(number)
        _, errors = mirror.communicate(timeout=240)
    finally:
        mirror.kill()
    assert mirror.returncode == 0, errors  # as of a mirror with Spark that is asked to stop
    once = subprocess.run(
        command(source, target, topic, "--once"), env=WITHOUT_JAVA, capture_output=True, text=True, timeout=240
    )
    assert once.returncode == 0, once.stderr
    copied_in = re.search(r" copied in ([\d.]+) s", once.stdout)
    assert copied_in and float(copied_in[1]) < 9, once.stdout  # its claims were released: else it waits for 10 s
    assert compare(source, target, topic).identical


def test_an_error_that_no_repeat_cures_ends_the_command_with_one_sentence(source: str, target: str) -> None:
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror = subprocess.Popen(command(source, target, topic), env=WITHOUT_JAVA, stderr=subprocess.PIPE, text=True)
    try:
        while ends(target, topic) != [100]:
            time.sleep(0.1)
        with kafka.KafkaProducer(bootstrap_servers=target) as stranger:
            stranger.send(topic, b"foreign").get(30)
        append_records(source, topic, 100, first=100)
        _, errors = mirror.communicate(timeout=240)
    finally:
        mirror.kill()
    assert mirror.returncode == 1 and "has a foreign record batch at offset 100" in errors and "Traceback" not in errors


def test_a_topic_that_others_have_written_to_is_copied_after_their_records_as_the_error_says(
    source: str, target: str
) -> None:
    topic = f"here-{secrets.token_hex(3)}"
    for servers in (source, target):
        create_topic(servers, topic)
    append_records(source, topic, 100)
    with kafka.KafkaProducer(bootstrap_servers=target, enable_idempotence=False) as stranger:
        stranger.send(topic, b"foreign").get(30)
    once = partial(subprocess.run, env=WITHOUT_JAVA, capture_output=True, text=True, timeout=240)
    plan = [sys.executable, "-m", "spark_integration.cli.app", "plan", *command(source, target, topic)[4:-2]]
    assert "has a foreign record batch at offset 0 that" in once(plan).stdout, "equal producer ids tell nothing apart"
    refused = once(command(source, target, topic, "--once"))
    assert "has a foreign record batch at offset 0" in refused.stderr
    assert "a link of its own with --offsets translated and another --link;" in refused.stderr
    assert re.search(r"batch at offset 0 \(producer id -1, the mirror's is \d+\) that", once(plan).stdout)
    done = once(command(source, target, topic, "--once", "--offsets", "translated", "--link", f"{topic}-translated"))
    assert done.returncode == 0, done.stderr
    assert ends(target, topic)[0] > 100


def test_a_running_mirror_goes_on_once_a_source_that_was_made_anew_has_grown_beyond_its_copy(
    source: str, target: str
) -> None:
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic)
    append_records(source, topic, 100)
    mirror = subprocess.Popen(
        command(source, target, topic, "--on-loss", "continue"), env=WITHOUT_JAVA, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: ends(target, topic) == [100])
        make_anew(source, topic)
        append_records(source, topic, 30, first=1000)
        until(lambda: losses(target, topic))
        time.sleep(2)  # the mirror has seen that the source is not there yet
        append_records(source, topic, 120, first=2000)
        until(lambda: ends(target, topic) == [150])
        mirror.send_signal(signal.SIGTERM)
        _, errors = mirror.communicate(timeout=240)
    finally:
        mirror.kill()
    assert mirror.returncode == 3 and "Traceback" not in errors, errors
    assert losses(target, topic) == [(0, 0, 100, "recreation")]


BY_NAME = """
from spark_integration.cli.app import main
from tolerant_client.cluster.cluster import Cluster
Cluster.produces_by_id = lambda cluster, node_id, lane: False
main()
"""


def test_a_target_made_anew_under_the_mirror_is_filled_again_from_where_the_source_begins(
    source: str, target: str
) -> None:
    """Its broker refuses the batch that names the old topic's id."""
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic)
    append_records(source, topic, 520, per_batch=20)
    delete_records(source, topic, 500)
    mirror = subprocess.Popen(command(source, target, topic), env=WITHOUT_JAVA, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: ends(target, topic) == [520])
        make_anew(target, topic)
        append_records(source, topic, 20, first=520)
        until(lambda: ends(target, topic) == [540])
        mirror.send_signal(signal.SIGTERM)
        _, errors = mirror.communicate(timeout=240)
    finally:
        mirror.kill()
    assert mirror.returncode == 0 and "Traceback" not in errors, errors
    assert compare(source, target, topic).identical and losses(target, topic) == []


def test_a_target_made_anew_under_the_mirror_is_no_copy_at_any_later_start_under_any_policy(
    source: str, target: str
) -> None:
    """A broker before 4.1 knows no topic ids and no producer, and takes the next batch at offset 0; the source begins later."""
    topic = f"here-{secrets.token_hex(3)}"
    create_topic(source, topic)
    append_records(source, topic, 520, per_batch=20)
    delete_records(source, topic, 500)
    words = [sys.executable, "-c", BY_NAME, *command(source, target, topic)[3:]]
    mirror = subprocess.Popen(words, env=WITHOUT_JAVA, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: ends(target, topic) == [520])
        append_records(source, topic, 20, first=520)
        until(lambda: ends(target, topic) == [540])
        make_anew(target, topic)
        append_records(source, topic, 20, first=540)
        _, errors = mirror.communicate(timeout=240)
    finally:
        mirror.kill()
    assert mirror.returncode == 1 and "delete the target topic" in errors, errors
    written = ends(target, topic)
    for policy in ("fail", "continue"):
        again = subprocess.run(
            command(source, target, topic, "--once", "--on-loss", policy),
            env=WITHOUT_JAVA,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (again.returncode != 0) == (written != [0]), again.stderr
        if written != [0]:
            assert "what lies there is no copy" in again.stderr, again.stderr
            assert losses(target, topic) == [] and ends(target, topic) == written
