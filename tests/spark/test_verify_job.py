"""verify as a Spark job: slices of partitions compared by tasks, put together by the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka
import msgspec
import pytest
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_integration.cli.app import app
from spark_integration.mirror import verify_job
from spark_integration.mirror.verify_job import VerifySettings, cut, deal
from support.mirror_link import T0, append_batches, append_records, create_topic
from tolerant_client.mirror.verify.outcome import Difference, NotCompared, Outcome
from tolerant_client.mirror.verify.slices import Slice, SliceResult
from tolerant_client.mirror.verify.verification import Verification
from tolerant_client.records.record_batch import Record, encode_batch
from tolerant_client.testing import KafkaCluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
RECORDS = 3000


@pytest.fixture(scope="module")
def clusters(kafka_cluster: KafkaCluster, start_cluster: Callable[..., KafkaCluster]) -> tuple[str, str]:
    """Topic same is the same on both, in topic other partition 1 differs at offset 2500."""
    both = kafka_cluster.bootstrap_servers, start_cluster(heap="320m").bootstrap_servers
    for number, servers in enumerate(both):
        for name in ("verify-job-same", "verify-job-other"):
            create_topic(servers, name, 2)
            count = RECORDS if name.endswith("same") else 2500
            append_records(servers, name, count, partitions=2, per_batch=100 + number, codec=number)
        for partition in (0, 1):
            value = b"wrong" if number and partition else b"right"
            last = encode_batch([Record(0, T0, b"k", value)] * 500)
            append_batches(servers, [(TopicPartition("verify-job-other", partition), last)])
    return both


def settings(clusters: tuple[str, str], topics: str, **options: Any) -> VerifySettings:
    return VerifySettings({"bootstrap.servers": clusters[0]}, {"bootstrap.servers": clusters[1]}, topics, **options)


def test_slices_cover_a_partition_and_a_compacted_one_is_not_cut() -> None:
    whole = Slice("t", 0, 10, 110)
    parts = cut(whole, 1000.0, 30_000.0)
    assert [p[2:4] for p in parts] == [(10, 35), (35, 60), (60, 85), (85, 110)]
    assert cut(whole, 1.0, 30_000.0) == [whole]
    assert len(cut(whole, 1e9, 1.0)) == 100
    compacted = whole._replace(is_compacted=(False, True))
    assert cut(compacted, 1000.0, 30_000.0) == [compacted]


def test_slices_are_dealt_by_size() -> None:
    sizes = {Slice("t", n, 0, 10): float(size) for n, size in enumerate((5, 4, 3, 3, 1))}
    assert sorted(sum(sizes[s] for s in group) for group in deal(sizes, 2)) == [8.0, 8.0]
    assert deal({}, 3) == []
    assert len(deal(sizes, 9)) == 5


def test_result_of_a_slice_comes_back_from_its_task_as_it_was() -> None:
    wanted, wrong, told = Slice("t", 1, 10, 110), Difference(70, "key differs"), Difference(20, "value differs")
    results = [
        SliceResult(wanted, 100, 110),
        SliceResult(wanted, 60, 70, wrong, filler=3, compacted=4),
        SliceResult(wanted, 60, 70, wrong, told, told_records=5, left_out=1),
        SliceResult(wanted, 99, 110, None, told, told_records=1),
        SliceResult(wanted, 9, 50, not_compared=(NotCompared(10, 20, "gone", False),), error="no leader"),
    ]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(results), type=list[SliceResult]) == results


def test_report_says_what_needs_no_look_at_records(spark: Any, clusters: tuple[str, str]) -> None:
    name = "verify-job-ends"
    for servers, partitions, count in zip(clusters, (3, 2), (50, 40)):
        create_topic(servers, name, partitions)
        append_records(servers, name, count, partitions=partitions)
    admin = kafka.KafkaAdminClient(bootstrap_servers=clusters[1])
    admin.delete_records({TopicPartition(name, 1): 40})
    admin.close()
    report, _ = verify_job.run(settings(clusters, name), session=spark)
    rest = "the target log ends at 40, and the source has 10 committed records after that"
    ends = Difference(40, "the target log ends earlier"), NotCompared(40, 50, rest)
    gone = NotCompared(0, 40, "the target no longer has them: its log starts at 40")
    absent = Difference(0, "the target has no such partition"), NotCompared(0, 50, "the target has no such partition")
    assert [(p.partition, p.compared, p.first_difference, p.not_compared) for p in report.partitions] == [
        (0, 40, ends[0], (ends[1],)),
        (1, 0, ends[0], (gone, ends[1])),
        (2, 0, absent[0], (absent[1],)),
    ]


def test_command_and_job_say_the_same_of_an_emptied_target(spark: Any, clusters: tuple[str, str]) -> None:
    name = "verify-job-emptied"
    for servers in clusters:
        create_topic(servers, name)
        append_records(servers, name, 1000)
    admin = kafka.KafkaAdminClient(bootstrap_servers=clusters[1])
    admin.delete_records({TopicPartition(name, 0): 1000})
    admin.close()
    command = ["verify", "--source", clusters[0], "--target", clusters[1], "--topics", name]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "NOTHING COMPARED: 0 of 1,000 offsets of the source compared (0 %)" in done.stdout
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    report, _ = verify_job.run(settings(clusters, name), session=spark)
    assert {**told, "seconds": 0} == json.loads(json.dumps({**report.as_json(), "seconds": 0}))
    assert (told["outcome"], told["share"]) == ("not compared", 0.0)


@pytest.mark.long
def test_each_slice_has_a_result(spark: Any, clusters: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_job, "cut", lambda wanted, each, size: cut(wanted, 1.0, 1000.0))
    found: list[SliceResult] = []
    take = Verification.take

    def taken(verification: Verification, results: list[SliceResult]) -> None:
        found.extend(results)
        take(verification, results)

    monkeypatch.setattr(Verification, "take", taken)
    verify_job.run(settings(clusters, "verify-job-(other|same)"), session=spark)
    found.sort(key=lambda result: result.slice)
    assert [result.slice[:4] for result in found] == [
        (f"verify-job-{name}", partition, start, start + 1000)
        for name in ("other", "same")
        for partition in (0, 1)
        for start in (0, 1000, 2000)
    ]
    assert [(r.slice.topic, r.slice.from_offset, *r.first_difference) for r in found if r.first_difference] == [
        ("verify-job-other", 2000, 2500, "value differs")
    ]
    assert sum(r.records for r in found if r.slice.topic == "verify-job-same") == 2 * RECORDS


def test_report_puts_the_slices_together(
    spark: Any, clusters: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_job, "cut", lambda wanted, each, size: cut(wanted, 1.0, 1000.0))
    report, _ = verify_job.run(settings(clusters, "verify-job-.*"), session=spark)
    by_name = {(p.topic, p.partition): p for p in report.partitions}
    assert report.outcome is Outcome.DIFFERENT
    wrong = by_name["verify-job-other", 1]
    assert (wrong.first_difference, wrong.identical_until) == (Difference(2500, "value differs"), 2500)
    right = by_name["verify-job-same", 1]
    assert (right.first_difference, right.identical_until, right.records) == (None, RECORDS, RECORDS)
    again, _ = verify_job.run(settings(clusters, "verify-job-same"), resume=report.as_json(), session=spark)
    assert (again.identical, again.records, again.compared, again.held) == (True, 0, 2 * RECORDS, 2 * RECORDS)
    assert spark.range(3).count() == 3  # a session that was given is left running


def test_command_compares_resumes_and_says_so_by_its_exit_code(clusters: tuple[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    link = ["verify", "--source", clusters[0], "--target", clusters[1], "--json", "--resume", str(state)]
    done = CliRunner().invoke(app, [*link, "--topics", "verify-job-same"])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)
    assert (first["identical"], first["records"]) == (True, 2 * RECORDS)
    assert (first["outcome"], first["share"], first["compared"]) == ("identical", 1.0, 2 * RECORDS)
    assert json.loads(state.read_text())["partitions"] == first["partitions"]
    again = json.loads(CliRunner().invoke(app, [*link, "--topics", "verify-job-same"]).stdout)
    assert (again["records"], again["partitions"][0]["resumed_at"]) == (0, RECORDS)
    state.unlink()
    done = CliRunner().invoke(app, [*link, "--topics", "verify-job-other"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["partitions"][1]["first_difference"] == {"offset": 2500, "reason": "value differs"}
    plain = CliRunner().invoke(app, [a for a in link if a != "--json"] + ["--topics", "verify-job-other"])
    assert plain.exit_code == 1
    assert "DIFFERENT" in plain.stdout and "differs" in plain.stdout
    state.write_text("[]")
    assert CliRunner().invoke(app, [*link, "--topics", "verify-job-other"]).exit_code != 0
