"""What was read of a partition decides where it resumes; nothing is read here."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import TargetDivergedError
from tolerant_client.mirror.batches.appendable import AppendState
from tolerant_client.mirror.batches.divergence import LogSlice
from tolerant_client.mirror.batches.losses import Loss, LossReason
from tolerant_client.mirror.engine.identical.difference import Case, EmptiedLogError, recreated
from tolerant_client.mirror.engine.identical.evidence import Evidence
from tolerant_client.mirror.engine.identical.log_start import find_log_start
from tolerant_client.mirror.engine.identical.logs import Logs
from tolerant_client.mirror.engine.identical.resume_point import LogStart, ToExplain, where_to_resume
from tolerant_client.mirror.state.link_control import LinkControl, TopicIds
from tolerant_client.records.record_batch import BatchHeader, Record, encode_batch, read_header

P = TopicPartition("orders", 0)
LINK_ID = 7
IDS = TopicIds("source-id", str(uuid.UUID(int=7)))
CONTROL = LinkControl(producer_ids=(LINK_ID,), begun={P: IDS})
SAME, EMPTY = Logs(0, 20, 0, 20), Logs(0, 20, 0, 0)
AFTER_RETENTION = Logs(30, 40, 0, 0)
SHARED = LogSlice(20, {19: Record(19, 1, None, b"x")})
LOG_APPEND_TIME = 1 << 3  # among the attributes of a batch


def last_of(base_offset: int, producer_id: int = LINK_ID) -> BatchHeader:
    batch = encode_batch(
        [Record(0, 1, None, b"x")] * 10,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base_offset,
    )
    return read_header(batch)


def evidence(
    logs: Logs, control: LinkControl = CONTROL, ids: TopicIds = IDS, last: BatchHeader | None = None, **more: Any
) -> Evidence:
    """Of a log of which nothing but its bounds and its last batch was read."""
    begun = control.begun.get(P)
    is_begun = begun is not None and begun.is_of_target(ids)
    case = Case(
        "dr",
        P,
        logs,
        last,
        AppendState(logs.target_end, LINK_ID, 0, more.pop("next_sequence", logs.target_end)),
        more.pop("cut", None),
        LINK_ID,
        (LINK_ID,),
        more.pop("is_strange", False),
        begun is not None and is_begun and bool(begun.source) and begun.source == ids.source,
        control.copied.get(P) if is_begun else None,
        more.pop("differs_at", None),
        begun is not None and is_begun or logs.adopted > 0,
    )
    return Evidence(case, control, ids, **more)


def test_a_log_that_the_link_wrote_last_goes_on_where_it_ends() -> None:
    assert where_to_resume(evidence(SAME, last=last_of(10)), None) == AppendState(20, LINK_ID, 0, 20)


@pytest.mark.parametrize(
    "signs",
    [
        {"cut": 12},
        {"differs_at": 12},
        {"is_strange": True},
        {"logs": Logs(0, 10, 0, 20)},
        {"last": last_of(10)._replace(attributes=LOG_APPEND_TIME)},
    ],
    ids=["truncated", "differs", "strange", "longer", "times rewritten"],
)
def test_whatever_contradicts_a_copy_has_to_be_explained(signs: dict[str, Any]) -> None:
    found = evidence(**{"logs": SAME, "last": last_of(10), **signs})
    assert where_to_resume(found, None) is ToExplain.DIFFERENCE


def test_another_topic_of_the_source_is_explained_before_a_difference_and_after_a_start() -> None:
    found = evidence(SAME, ids=IDS._replace(source="another"), last=last_of(10), differs_at=12)
    assert where_to_resume(found, None) is ToExplain.RECREATION
    assert where_to_resume(found, 15) == LogStart(found.case.state, 15)
    refusal = TargetDivergedError("others have written before that")
    assert where_to_resume(found, refusal) is refusal


def test_a_batch_that_was_meant_for_a_later_offset_counts_before_all_else() -> None:
    ahead = evidence(SAME, last=last_of(10), next_sequence=21, differs_at=12)
    for start in (None, 15):
        found = where_to_resume(ahead, start)
        assert isinstance(found, TargetDivergedError) and "meant for a later offset" in str(found)


def test_brokers_may_remember_more_than_what_a_comparison_reads() -> None:
    """The log goes on behind the high watermark."""
    others = {"last": last_of(10, producer_id=9), "next_sequence": 30, "is_remembered": True, "original": SHARED}
    found = evidence(SAME, at_high_watermark=True, tail=SHARED, **others)
    assert where_to_resume(found, None) == found.case.state
    assert isinstance(where_to_resume(replace(found, at_high_watermark=False), None), TargetDivergedError)


@pytest.mark.parametrize(
    ("control", "more", "is_proved"),
    [
        (CONTROL, {}, False),
        (replace(CONTROL, copied={P: 20}), {}, True),
        (replace(CONTROL, copied={P: 19}), {}, False),
        (replace(CONTROL, log_starts={P: 20}), {}, True),
        (CONTROL, {"is_remembered": True}, True),
        (CONTROL, {"is_remembered": True, "next_sequence": 12}, False),
        (replace(CONTROL, begun={}, copied={P: 20}), {}, False),
        (replace(CONTROL, begun={}), {"logs": Logs(0, 20, 20, 20, 20)}, True),
    ],
    ids=["nothing", "copied", "less copied", "begun there", "remembered", "sequence lags", "not begun", "adopted"],
)
def test_the_end_of_an_emptied_log_is_the_links_only_if_something_beside_it_says_so(
    control: LinkControl, more: dict[str, Any], is_proved: bool
) -> None:
    found = evidence(control=control, **{"logs": Logs(0, 20, 20, 20), **more})
    assert found.is_proved == is_proved
    placed = where_to_resume(found, None)
    assert isinstance(placed, AppendState if is_proved else EmptiedLogError)
    if isinstance(placed, EmptiedLogError):
        assert "with what only it has (compare both with tolerant-kafka verify first)" in placed.remedy
        assert ("the topic is its applications'" in placed.remedy) is not found.case.is_begun


def test_equal_records_at_the_end_prove_a_copy_and_none_do_not() -> None:
    """Whoever wrote them."""
    stranger = last_of(10, producer_id=9)
    found = evidence(SAME, replace(CONTROL, begun={}), last=stranger, original=SHARED, tail=SHARED)
    assert where_to_resume(found, None) == found.case.state
    assert isinstance(where_to_resume(replace(found, tail=LogSlice(20)), None), TargetDivergedError)


def start_of(logs: Logs, control: LinkControl, ids: TopicIds = IDS, **more: Any) -> Any:
    """Where an empty log begins; nothing is read of one."""
    found = evidence(logs, control, ids, **more)
    placed = where_to_resume(found, asyncio.run(find_log_start(cast(Cluster, None), found)))
    return placed.start if isinstance(placed, LogStart) else placed


def test_what_retention_takes_before_anything_of_a_begun_log_is_copied_is_a_loss() -> None:
    """Only a log that nobody has begun starts with the source's."""
    found = start_of(AFTER_RETENTION, CONTROL)
    assert isinstance(found, Loss) and found.resume_at == 30
    assert (found.row.from_offset, found.row.until_offset, found.row.reason) == (0, 30, LossReason.RETENTION)
    for never in (replace(CONTROL, begun={}), replace(CONTROL, begun={P: TopicIds("source-id", "another")})):
        assert start_of(AFTER_RETENTION, never) == 30
    assert start_of(EMPTY, CONTROL).log_end == 0


def test_an_empty_log_that_was_to_begin_at_an_offset_begins_there_wherever_the_source_does_now() -> None:
    assert start_of(AFTER_RETENTION, replace(CONTROL, log_starts={P: 20})) == 20


def test_a_start_that_an_operator_gives_a_begun_log_later_holds_while_it_is_empty() -> None:
    assert start_of(AFTER_RETENTION, replace(CONTROL, starts={P: 35})) == 35


def test_a_log_that_nobody_has_begun_begins_where_the_source_was_cut_below_its_start() -> None:
    """What the source has had there since is newer; once the log is begun, the cut is a loss."""
    given = replace(CONTROL, starts={P: 15})
    assert start_of(EMPTY, replace(given, begun={}), start_cut=12) == 12
    assert start_of(EMPTY, given, start_cut=12) == 15
    begun = evidence(Logs(0, 20, 15, 15), replace(given, log_starts={P: 15}), cut=12)
    assert where_to_resume(begun, None) is ToExplain.DIFFERENCE


def test_a_start_that_an_operator_gave_a_former_topic_of_the_source_is_none_of_this_one() -> None:
    """Its target topic was deleted, too, as we advise: it is copied anew, whole."""
    anew = replace(CONTROL, begun={P: TopicIds("former-id", "another")}, starts={P: 15}, log_starts={P: 15})
    assert start_of(EMPTY, replace(anew, starts_of={P: TopicIds(IDS.source)})) == 15
    assert start_of(EMPTY, replace(anew, starts_of={P: TopicIds("former-id")})).log_end == 0
    assert start_of(EMPTY, replace(anew, starts={P: 21})).log_end == 0, "no ids tell, but the source ends before"


def test_without_ids_an_empty_log_that_was_copied_was_made_anew() -> None:
    told = replace(CONTROL, begun={P: TopicIds("", "")})
    assert isinstance(start_of(AFTER_RETENTION, told), Loss)
    assert start_of(AFTER_RETENTION, replace(told, copied={P: 10})) == 30


@pytest.mark.parametrize("logs", [EMPTY, AFTER_RETENTION, Logs(0, 0, 0, 0)], ids=["others", "later", "empty"])
def test_a_source_made_anew_before_anything_of_a_begun_log_is_copied_is_a_loss(logs: Logs) -> None:
    """What the former one had nobody knows, so the row has no offsets."""
    control, unread = replace(CONTROL, begun={P: IDS._replace(source="former-id")}), cast(Cluster, None)
    assert start_of(logs, control) is ToExplain.RECREATION
    found = asyncio.run(recreated(unread, unread, evidence(logs, control).case))
    assert isinstance(found, Loss) and found.resume_at == 0
    assert (found.row.from_offset, found.row.until_offset, found.row.reason) == (0, 0, LossReason.RECREATION)
