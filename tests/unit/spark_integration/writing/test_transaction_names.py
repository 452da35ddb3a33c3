"""Which transactional id an attempt uses: each has its own, and a later micro-batch uses those of the earlier ones."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from spark_integration.writing.exactly_once import SinkBatch
from spark_integration.writing.transaction_names import transactional_id

RUN, LATER_RUN = "0a" * 16, "0b" * 16
PLACE = SinkBatch("sink", "query-1", RUN, batch=7)
LATER = replace(PLACE, batch=8)


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an executor, as Spark's Python workers know it."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/another/disk")
    return tmp_path


def used(place: SinkBatch) -> str:
    """The id of an attempt that has ended well."""
    with transactional_id(place) as name:
        return name


def used_at_once(place: SinkBatch, count: int) -> list[str]:
    """The ids of attempts that all live at the same time."""
    with contextlib.ExitStack() as attempts:
        return [attempts.enter_context(transactional_id(place)) for _ in range(count)]


def test_a_later_micro_batch_uses_the_ids_of_earlier_ones_and_no_micro_batch_uses_one_twice() -> None:
    first = {used(PLACE) for _ in range(5)}
    assert len(first) == 5
    assert {PLACE.run_of(name) for name in first} == {RUN}
    assert set(used_at_once(LATER, 5)) == first
    more = {used(replace(PLACE, batch=9)) for _ in range(6)}
    assert first < more and len(more) == 6
    assert {used(replace(PLACE, batch=12)) for _ in range(3)} < more


def test_attempts_that_begin_together_have_an_id_each() -> None:
    together = Barrier(8)
    known = {used(PLACE) for _ in range(20)}

    def attempt(batch: int) -> list[str]:
        together.wait()
        return used_at_once(replace(PLACE, batch=batch), 3)

    with ThreadPoolExecutor(8) as threads:
        for batch in range(8, 28):
            names = [name for some in threads.map(attempt, [batch] * 8) for name in some]
            assert len(set(names)) == 24
            known.update(names)
    assert len(known) == 24


def test_an_attempt_that_comes_late_has_no_id_of_a_later_micro_batch() -> None:
    later = {used(LATER) for _ in range(3)}
    assert used(PLACE) not in later


def test_the_id_of_an_attempt_that_failed_or_has_not_ended_is_not_used_again() -> None:
    with pytest.raises(RuntimeError), transactional_id(PLACE) as failed:
        raise RuntimeError("a request of it may still be on its way")
    with transactional_id(PLACE) as living:
        assert not {failed, living} & {used(LATER) for _ in range(3)}


@pytest.mark.parametrize(
    "other",
    [
        replace(LATER, run=LATER_RUN),
        replace(LATER, sink="another"),
        SinkBatch("sink", "", RUN, batch=0),
    ],
    ids=["run", "sink", "batch write"],
)
def test_others_use_other_ids(other: SinkBatch) -> None:
    names = {used(PLACE).rpartition("/")[2] for _ in range(3)}
    assert {used(other).rpartition("/")[2] for _ in range(3)}.isdisjoint(names)


def test_a_batch_write_leaves_no_file(executor: Path) -> None:
    used(SinkBatch("sink", "", RUN, batch=0))
    assert list(executor.iterdir()) == []


@pytest.mark.parametrize("trouble", ["no folder", "a folder that is gone", "a file"])
def test_without_a_folder_each_attempt_has_a_new_id(
    executor: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "no folder":
        monkeypatch.delenv("SPARK_LOCAL_DIRS")
    else:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(executor / "gone"))
    if trouble == "a file":
        (executor / "gone").touch()
    assert len({used(replace(PLACE, batch=batch)) for batch in range(3)}) == 3
    assert not (executor / "gone").is_dir(), "an executor that ends leaves nothing behind"


def test_files_of_others_are_left_alone(executor: Path) -> None:
    first = used(PLACE)
    (folder,) = executor.iterdir()
    others = {".nfs0000", ".DS_Store", "1-decider", "x-" + "0" * 12, "1-" + "0" * 13}
    for name in others:
        (folder / name).touch()
    assert used_at_once(LATER, 2)[0] == first
    assert others < {file.name for file in folder.iterdir()}


def test_a_folder_that_is_gone_has_the_next_one_used(executor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/no/disk,{executor}")
    assert used(PLACE) == used(LATER)
