"""Resolving Kafka's jars: the errors if it fails, and the cache if it succeeds."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from tolerant_client.errors import TolerantClientError
from tolerant_client.testing import artifacts
from tolerant_client.testing.artifacts import (
    SPARK_KAFKA,
    ClusterStartError,
    cache_dir,
    jars,
    java_executable,
    java_major,
    spark_kafka_jars,
)

JAVA_17 = "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, no JAVA_HOME, no pyspark, and an empty cache."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("TOLERANT_KAFKA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "_ivy_jar", lambda: None)
    monkeypatch.setattr(artifacts, "_known_sums", dict)
    monkeypatch.setattr(artifacts, "_known_sets", dict)
    return folder


def script(file: Path, body: str) -> Path:
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


# A Maven that "resolves" by creating the jar, and records that it was called.
FAKE_MVN = """
for word; do case $word in -DoutputDirectory=*) lib=${word#*=};; esac; done
PATH=/usr/bin:/bin
mkdir -p "$lib"
: > "$lib/kafka_2.13-4.2.0.jar"
echo called >> "$(dirname "$0")/calls"
"""


def test_missing_java_is_said_with_the_remedy(tools: Path) -> None:
    with pytest.raises(ClusterStartError, match=r"Java 17 or newer is needed.*install a Java 17 runtime"):
        java_executable()


def test_old_java_is_said_with_its_version(tools: Path) -> None:
    script(tools / "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    with pytest.raises(ClusterStartError, match=r"tools/java says 'openjdk version \"11\.0\.2\""):
        java_executable()


def test_java_that_does_not_run_is_said(tools: Path) -> None:
    (tools / "java").write_bytes(b"\x00\x01 no program")
    (tools / "java").chmod(0o755)
    with pytest.raises(ClusterStartError, match="does not run"):
        java_executable()


def test_java_home_goes_before_path(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tools / "java", "exit 1")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    expected = script(home / "bin" / "java", JAVA_17)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_executable() == str(expected)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no version at all", None),
    ],
)
def test_java_major(text: str, major: int | None) -> None:
    assert java_major(text) == major


def test_no_resolver_is_said_with_both_remedies(tools: Path) -> None:
    script(tools / "java", JAVA_17)
    with pytest.raises(ClusterStartError, match=r"neither `mvn` on PATH nor pyspark.*pip install pyspark"):
        jars("4.2.0")


def test_unreachable_registry_names_all_that_was_tried(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tools / "java", f'[ "$1" = -version ] && {{ {JAVA_17}; exit 0; }}; echo "UNRESOLVED: not found"; exit 1')
    script(
        tools / "mvn", "printf '\\033[0m\\033[1m[ERROR]\\033[m Could not transfer artifact: Connection refused'; exit 1"
    )
    monkeypatch.setattr(artifacts, "_ivy_jar", lambda: Path("ivy.jar"))
    with pytest.raises(ClusterStartError) as caught:
        jars("4.2.0")
    sentence = str(caught.value)
    assert "mvn ([ERROR] Could not transfer artifact: Connection refused)" in sentence
    assert "the Ivy jar of pyspark (UNRESOLVED: not found)" in sentence
    assert "repository is reachable" in sentence
    assert isinstance(caught.value, TolerantClientError)


def test_failed_resolution_leaves_nothing_that_looks_resolved(tools: Path) -> None:
    script(tools / "java", JAVA_17)
    script(tools / "mvn", FAKE_MVN.replace("4.2.0", "9.9.9"))
    for _ in range(2):
        with pytest.raises(ClusterStartError, match="is not among the jars that it resolved"):
            jars("4.2.0")


def test_resolved_jars_are_kept(tools: Path) -> None:
    script(tools / "java", JAVA_17)
    script(tools / "mvn", FAKE_MVN)
    first = jars("4.2.0")
    assert [jar.name for jar in first] == ["kafka_2.13-4.2.0.jar"]
    assert jars("4.2.0") == first
    assert (tools / "calls").read_text() == "called\n"
    assert first[0].is_relative_to(cache_dir())


def test_kept_jars_need_neither_java_nor_maven(tools: Path) -> None:
    script(tools / "java", JAVA_17)
    script(tools / "mvn", FAKE_MVN)
    first = jars("4.2.0")
    (tools / "java").unlink()
    (tools / "mvn").unlink()
    assert jars("4.2.0") == first


def test_cache_that_cannot_be_made_is_said(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tools / "java", JAVA_17)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOLERANT_KAFKA_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ClusterStartError, match="set TOLERANT_KAFKA_CACHE"):
        jars("4.2.0")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOLERANT_KAFKA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join(os.sep, "somewhere"))
    assert cache_dir() == Path(os.sep, "somewhere", "tolerant-client", "kafka")


def test_sparks_kafka_source_is_resolved_without_what_pyspark_has(tools: Path) -> None:
    script(tools / "java", JAVA_17)
    wanted = [f"{name}-{version}.jar" for _, name, version in SPARK_KAFKA]
    script(tools / "mvn", FAKE_MVN.replace("kafka_2.13-4.2.0.jar", wanted[0]) + f'cp pom.xml "{tools}"\n')
    assert [jar.name for jar in spark_kafka_jars()] == wanted[:1]
    pom = (tools / "pom.xml").read_text()
    assert pom.count("<artifactId>*</artifactId>") == pom.count("<dependency>") == len(SPARK_KAFKA)


def test_maven_refuses_what_its_checksums_refuse(tools: Path) -> None:
    command = artifacts._maven_command(tools / "mvn-folder", "mvn", [("g", "a", "1")], True)
    assert "--strict-checksums" in command


def test_a_jar_that_was_changed_is_refused_when_it_comes_and_when_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "4.2.0"
    place.mkdir()
    jar = place / "kafka_2.13-4.2.0.jar"
    jar.write_bytes(b"right")
    monkeypatch.setattr(artifacts, "_known_sums", lambda: {jar.name: hashlib.sha256(b"right").hexdigest()})
    assert artifacts.resolved_jars(place, [], "Kafka 4.2.0") == (jar,)
    jar.write_bytes(b"wrong")
    os.utime(jar, ns=(1, 1))
    with pytest.raises(
        ClusterStartError, match="kafka_2.13-4.2.0.jar is not the .* of Kafka 4.2.0|SHA-256 sum is wrong"
    ):
        artifacts.resolved_jars(place, [], "Kafka 4.2.0")

    def resolve(command: object, folder: Path) -> None:
        (folder / "lib").mkdir()
        (folder / "lib" / jar.name).write_bytes(b"wrong")

    monkeypatch.setattr(artifacts, "_run", resolve)
    monkeypatch.setattr(artifacts, "java_executable", lambda: "java")
    monkeypatch.setattr(artifacts.shutil, "which", lambda name: "mvn")
    other = tmp_path / "other"
    with pytest.raises(ClusterStartError, match="SHA-256 sum is wrong"):
        artifacts.resolved_jars(other, [("org.apache.kafka", "kafka_2.13", "4.2.0")], "Kafka 4.2.0")
    assert not other.exists(), "nothing of it is kept"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose set is known: a.jar with b.jar as Maven resolves it, or with c.jar as Ivy does."""
    sums = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.jar", "b.jar", "c.jar", "other.jar")}
    sets = {"4.2.0/kafka": [frozenset({"a.jar", "b.jar"}), frozenset({"a.jar", "c.jar"})]}
    monkeypatch.setattr(artifacts, "_known_sums", lambda: sums)
    monkeypatch.setattr(artifacts, "_known_sets", lambda: sets)
    (tmp_path / "4.2.0").mkdir()
    return tmp_path / "4.2.0" / "kafka"


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(name)


@pytest.mark.parametrize("names", [("a.jar", "b.jar"), ("a.jar", "c.jar")])
def test_a_known_set_is_taken_as_either_resolver_makes_it(known: Path, names: tuple[str, ...]) -> None:
    fill(known, *names)
    assert [jar.name for jar in artifacts.resolved_jars(known, [], "Kafka 4.2.0")] == list(names)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a.jar", "aaa-1.jar", "b.jar"), "extra: aaa-1.jar; missing: none"),
        (("a.jar", "b.jar", "other.jar"), "extra: other.jar; missing: none"),
        (("a.jar", "b.jar", "c.jar"), "extra: (b|c).jar; missing: none"),
        (("b.jar",), "extra: none; missing: a.jar"),
        ((), "extra: none; missing: a.jar"),
    ],
)
def test_a_known_set_with_a_jar_more_or_less_is_refused_when_it_comes_and_when_it_lies_there(
    known: Path, names: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(command: object, folder: Path) -> None:
        fill(folder / "lib", *{"kafka-4.2.0.jar", *names})

    monkeypatch.setattr(artifacts, "_run", resolve)
    monkeypatch.setattr(artifacts, "java_executable", lambda: "java")
    monkeypatch.setattr(artifacts.shutil, "which", lambda name: "mvn")
    with pytest.raises(ClusterStartError, match="extra: .*kafka-4.2.0.jar"):
        artifacts.resolved_jars(known, [("org.apache.kafka", "kafka", "4.2.0")], "Kafka 4.2.0")
    assert not known.exists(), "nothing of it is kept"
    fill(known, *names)
    with pytest.raises(ClusterStartError, match=f"not those of Kafka 4.2.0 .{words}.*remove the folder"):
        artifacts.resolved_jars(known, [], "Kafka 4.2.0")


def test_every_set_that_is_known_has_a_sum_for_each_jar_and_the_one_that_names_it() -> None:
    sets, sums = artifacts._known_sets(), artifacts._known_sums()
    versions = {place.split("/")[0] for place in sets}
    assert versions >= {"4.2.0", "3.9.1", "2.8.2", "1.1.1", "0.11.0.3", "0.10.2.2", "0.9.0.1", "0.8.2.2", "spark-4.2.0"}
    for place, known in sets.items():
        version, modules = place.split("/")
        if not version.startswith(("spark", "hadoop")):
            firsts = {f"{module}-{version}.jar" for module in modules.split("+")}
            assert all(firsts <= names <= sums.keys() for names in known), place


def test_the_sums_of_the_versions_that_the_tests_use_are_known() -> None:
    sums = artifacts._known_sums()
    for version in ("4.2.0", "3.9.1", "2.8.2"):
        assert f"kafka_2.13-{version}.jar" in sums
    for version in ("1.1.1", "0.11.0.3", "0.10.2.2", "0.9.0.1", "0.8.2.2"):
        assert f"kafka_2.11-{version}.jar" in sums
    assert {f"{name}-{version}.jar" for _, name, version in artifacts.SPARK_KAFKA} <= sums.keys()
    assert all(len(digest) == 64 for digest in sums.values())


def test_a_version_without_sums_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kafka_2.13-9.9.9.jar").write_bytes(b"new")
    artifacts.resolved_jars(tmp_path, [], "Kafka 9.9.9")
    assert "No SHA-256 sum is known for 1 jars of Kafka 9.9.9" in caplog.text
