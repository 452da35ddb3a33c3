"""The policy that the user's texts make."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.gaps import GapFill
from tolerant_client.mirror.batches.losses import LedgerRow, LossPolicy, LossReason, MirrorPolicy


def test_nothing_said_means_to_fail_and_to_choose_the_filling() -> None:
    policy = MirrorPolicy()
    assert (policy.gap_fill, policy.on_loss, policy.on_oversized) == (GapFill.AUTO, LossPolicy.FAIL, LossPolicy.FAIL)
    assert policy.for_topic("orders") == policy


def test_texts_are_for_all_topics_or_for_those_of_an_expression_and_the_last_wins() -> None:
    policy = MirrorPolicy.parse(
        on_loss=["pause", "clicks.*=continue", "clicks=fail"], on_oversized=["continue"], gap_fill=["a=b|c=d=records"]
    )
    assert policy.on_loss is LossPolicy.PAUSE
    assert policy.for_topic("orders").on_loss is LossPolicy.PAUSE
    assert policy.for_topic("clicks.eu").on_loss is LossPolicy.CONTINUE
    assert policy.for_topic("clicks").on_loss is LossPolicy.FAIL
    assert policy.for_topic("more-clicks").on_loss is LossPolicy.PAUSE
    assert policy.for_topic("clicks").on_oversized is LossPolicy.CONTINUE
    assert policy.for_topic("c=d").gap_fill is GapFill.RECORDS
    assert policy.for_topic("clicks").overrides == ()


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("on_loss", "ignore", "--on-loss 'ignore': 'ignore' is none of fail, continue, pause"),
        ("on_loss", "clicks=", "'' is none of"),
        ("gap_fill", "(=auto", r"--gap-fill '\(=auto': '\(' is not a regular expression"),
        ("gap_fill", "fail", "'fail' is none of auto, transactions, markers, records"),
    ],
)
def test_wrong_text_is_named_with_what_is_known(setting: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MirrorPolicy.parse(**{setting: [text]})


def test_policy_survives_json_and_pickle() -> None:
    policy = MirrorPolicy.parse(on_loss=["continue", "a.*=pause"], gap_fill=["records"])
    assert msgspec.json.decode(msgspec.json.encode(policy), type=MirrorPolicy) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_row_reads_as_a_sentence() -> None:
    row = LedgerRow(1, "l", "orders", 3, 30, 40, LossReason.RETENTION, "deleted")
    assert str(row) == "orders-3 offsets 30 to 40: retention (deleted)"
