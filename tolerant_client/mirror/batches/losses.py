"""What a mirror does if the source no longer has, or cannot return, what should be copied (M7).

Laws:
- No loss is silent: its ledger row is written before the mirror continues.
- A row has all that is needed to find what it is about: link, topic, partition,
  offsets (half-open), reason, time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tolerant_client.errors import OptionError, TolerantClientError
from tolerant_client.mirror.batches.gaps import GapFill

if TYPE_CHECKING:
    from tolerant_client.mirror.batches.appendable import AppendState


class LossPolicy(str, enum.Enum):
    """FAIL stops the mirror, CONTINUE resumes after the loss, PAUSE pauses the partition and copies the others."""

    FAIL = "fail"
    CONTINUE = "continue"
    PAUSE = "pause"

    def __str__(self) -> str:
        return self.value


class LossReason(str, enum.Enum):
    """Why offsets of the source are missing on the target, or have other records there."""

    RETENTION = "retention"  # deleted on the source before they were copied
    TRUNCATION = "truncation"  # lost by the source after they were copied (unclean election): the target keeps its own
    RECREATION = "recreation"  # the source topic was deleted and created again: the target keeps the old one's
    OVERSIZED = "oversized"  # a record above the target's max.message.bytes

    def __str__(self) -> str:
        return self.value


class LedgerRow(NamedTuple):
    """One loss: offsets [from_offset, until_offset) of a partition; `time_ms` is when it was found.

    `topic_id` is the target topic's (KIP-516): a topic that is created again under the same name has not lost what its
    predecessor had.  Empty if the brokers, or an earlier version of the mirror, did not supply it.
    """

    time_ms: int
    link: str
    topic: str
    partition: int
    from_offset: int
    until_offset: int
    reason: str
    detail: str
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.from_offset} to {self.until_offset}: {self.reason} ({self.detail})"


class Loss(NamedTuple):
    """A loss that the policy decides about.

    `error` is what FAIL raises.  With CONTINUE, once `row` is in the ledger, the
    partition resumes from `state`: offsets [state.log_end, resume_at) become a
    gap, and what the target has below stays as it is.
    """

    row: LedgerRow
    error: TolerantClientError
    state: AppendState
    resume_at: int


GOES_ON = "--on-loss continue (in the file of --config: tolerant.on.loss = continue)"  # how to resume after a loss


@dataclass(frozen=True)
class MirrorPolicy:
    """What a link may decide itself; `overrides` are (setting, expression for whole topic names, value), the last one wins."""

    gap_fill: GapFill = GapFill.AUTO
    on_loss: LossPolicy = LossPolicy.FAIL
    on_oversized: LossPolicy = LossPolicy.FAIL
    overrides: tuple[tuple[str, str, str], ...] = ()

    @classmethod
    def parse(cls, **settings: Iterable[str]) -> MirrorPolicy:
        """A policy from texts such as on_loss=["fail", "clicks.*=continue"].

        A text without "=" applies to all topics, one with it to those whose
        whole name matches the regular expression before the last "=".
        Raises OptionError.
        """
        policy = cls()
        for setting, texts in settings.items():
            option = f"--{setting.replace('_', '-')}"
            for text in texts:
                expression, equals, value = text.rpartition("=")
                chosen = _value(setting, value, option, text)
                if not equals:
                    general: dict[str, Any] = {setting: chosen}
                    policy = replace(policy, **general)
                    continue
                try:
                    re.compile(expression)
                except re.error as error:
                    raise OptionError(
                        f"{option} {text!r}: {expression!r} is not a regular expression ({error})"
                    ) from error
                policy = replace(policy, overrides=(*policy.overrides, (setting, expression, chosen.value)))
        return policy

    def for_topic(self, topic: str) -> MirrorPolicy:
        """The policy of one topic, without overrides."""
        chosen: dict[str, Any] = {
            setting: _VALUES[setting](value)
            for setting, expression, value in self.overrides
            if re.fullmatch(expression, topic)
        }
        return replace(self, overrides=(), **chosen)

    def on(self, topic: str, reason: str) -> LossPolicy:
        """The policy for a loss in a topic."""
        chosen = self.for_topic(topic)
        return chosen.on_oversized if reason == LossReason.OVERSIZED else chosen.on_loss


_VALUES: Mapping[str, type[GapFill] | type[LossPolicy]] = {
    "gap_fill": GapFill,
    "on_loss": LossPolicy,
    "on_oversized": LossPolicy,
}


def _value(setting: str, value: str, option: str, text: str) -> GapFill | LossPolicy:
    try:
        return _VALUES[setting](value)
    except ValueError:
        known = ", ".join(member.value for member in _VALUES[setting])
        raise OptionError(f"{option} {text!r}: {value!r} is none of {known}") from None
