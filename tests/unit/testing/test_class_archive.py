"""The class archive of brokers: made once for one Java and one folder of jars, and used only if it is this user's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tolerant_client.testing import ClusterStartError
from tolerant_client.testing.class_archive import class_archive

RECORD = "-XX:ArchiveClassesAtExit="
JAVA = sys.executable  # any file: nothing is started


def writes(option: str) -> None:
    assert option.startswith(RECORD)
    Path(option.removeprefix(RECORD)).write_bytes(b"classes")


def fails(option: str) -> None:
    raise ClusterStartError("no broker starts")


def test_it_is_made_at_the_first_start_and_found_by_the_next(tmp_path: Path) -> None:
    made = class_archive(tmp_path, JAVA, writes)
    assert made is not None and made.parent == tmp_path and made.read_bytes() == b"classes"
    assert class_archive(tmp_path, JAVA, fails) == made


def test_another_java_makes_another_one(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.touch()
    assert class_archive(tmp_path, str(java), writes) != class_archive(tmp_path, JAVA, writes)


def test_a_java_that_makes_none_is_asked_once(tmp_path: Path) -> None:
    assert class_archive(tmp_path, JAVA, lambda _: None) is None
    assert class_archive(tmp_path, JAVA, fails) is None


def test_a_broker_that_does_not_start_is_said_and_tried_again(tmp_path: Path) -> None:
    with pytest.raises(ClusterStartError, match="no broker starts"):
        class_archive(tmp_path, JAVA, fails)
    assert class_archive(tmp_path, JAVA, writes) is not None


def test_what_another_user_has_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert class_archive(tmp_path, JAVA, writes) is not None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert class_archive(tmp_path, JAVA, fails) is None


def test_a_folder_that_cannot_be_written_to_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert class_archive(tmp_path, JAVA, fails) is None
