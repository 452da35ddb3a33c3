"""How far recovery may go, as one immutable value.

The defaults (`balanced`) recover within a round trip or two, never send a Produce without a producer id again, and end a
connection that is wrong again and again.  `strict` sends nothing again by itself and ends a connection at its first wrong
response.  `patient` is for peers that respond out of order or seconds late.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tolerant_client.errors import OptionError

POLICIES = ("strict", "balanced", "patient")


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What a connection does about responses that are missing, late or wrong."""

    reorder_grace_ms: float = 5.0
    """How long an older response may come after a later one before a probe asks for it."""

    probe_min_ms: float = 200.0
    """The shortest silence, beyond the time that a request may rightly take, before a probe is sent."""

    probe_max_ms: float = 5_000.0
    """The longest such silence, however slow the round trips were."""

    max_resends: int = 8
    """How often one request is sent again before it fails; nothing is sent again after its deadline."""

    resend_plain_produce: bool = False
    """Send a Produce without a producer id again when its response is lost: may double records."""

    retries_plain_produce: bool = False
    """Hand up such a Produce as retriable: its sender repeats it, and has accepted that records may be doubled.

    A KafkaProducer with `retries` above 0, the default, sets it.
    """

    max_mismatches: int = 64
    """Lost and orphaned responses within `mismatch_window_ms` that a connection survives."""

    mismatch_window_ms: float = 30_000.0
    """The window of `max_mismatches`."""

    max_throttle_ms: float = 30_000.0
    """How long a broker's throttle_time_ms is believed; a flipped bit may claim days.

    A longer one is obeyed while the broker does not respond to a probe: it reads nothing of a connection that it throttles
    (KIP-219).  Without a question to ask (old brokers) it ends then.
    """

    coordinator_timeout_ms: float = 30_000.0
    """How often to report that a group or transactional id has no coordinator; float("inf") reports nothing.

    With `raise_coordinator_unavailable` also the time after which calls raise: long enough for a broker's restart.
    """

    raise_coordinator_unavailable: bool = False
    """Whether calls that wait for a coordinator, including poll(), raise CoordinatorUnavailableError.

    Otherwise they wait as long as kafka-python's do; the log and the listener report the reason.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0:  # refuses a NaN too
                raise OptionError(f"{field.name} is {value}; it must not be negative")
        if self.probe_max_ms < self.probe_min_ms:
            raise OptionError(f"probe_max_ms ({self.probe_max_ms}) is below probe_min_ms ({self.probe_min_ms})")

    def for_retries(self, retries: float | None) -> RecoveryPolicy:
        """This policy for a client with these `retries`: a number above 0 accepts that records may be doubled."""
        return replace(self, retries_plain_produce=True) if retries is not None and retries > 0 else self

    @classmethod
    def of(cls, policy: RecoveryPolicy | str | None) -> RecoveryPolicy:
        """The policy of an option: a policy, its name, or None for the defaults.  Raises OptionError for anything else."""
        if isinstance(policy, RecoveryPolicy):
            return policy
        if policy is None:
            return cls()
        if policy not in POLICIES:
            raise OptionError(
                f"recovery_policy is {policy!r}: it must be a RecoveryPolicy, or one of 'strict', 'balanced' and 'patient'"
            )
        named: RecoveryPolicy = getattr(cls, policy)()
        return named

    @classmethod
    def strict(cls) -> RecoveryPolicy:
        """Sends nothing again by itself; the first lost or wrong response ends its connection."""
        return cls(max_resends=0, max_mismatches=0)

    @classmethod
    def balanced(cls) -> RecoveryPolicy:
        """The defaults."""
        return cls()

    @classmethod
    def patient(cls) -> RecoveryPolicy:
        """Waits longer before it believes a loss, and keeps a peer longer that is often wrong."""
        return cls(
            reorder_grace_ms=1_000.0,
            probe_min_ms=500.0,
            probe_max_ms=10_000.0,
            max_resends=32,
            max_mismatches=1_024,
        )
