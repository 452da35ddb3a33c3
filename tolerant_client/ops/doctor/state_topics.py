"""Whether the topics in which links keep their state keep it: an existing one is used as it is, whoever has created it.  Pure.

Law: a topic is judged by what it is created with (StateTopic): what deletes more of it than that does loses what must be kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tolerant_client.mirror.state.claims_record import CLAIMS_TOPIC
from tolerant_client.mirror.state.control_record import CONTROL_TOPIC
from tolerant_client.mirror.state.ledger import LEDGER_TOPIC
from tolerant_client.mirror.state.map_topic import map_topic
from tolerant_client.mirror.state.plan import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS
from tolerant_client.ops.doctor.facts import ClusterFacts
from tolerant_client.ops.doctor.finding import Severity, Told, check
from tolerant_client.ops.doctor.link_checks import Retention

_CLAIMS_MS = 3_600_000  # the mirrors of the last hour


def state_topics(link: str) -> list[str]:
    """The names on the target of the topics that keep a link's state."""
    return [CONTROL_TOPIC, LEDGER_TOPIC, CLAIMS_TOPIC, map_topic(link)]


@check("control", cluster="link")
def state_topic_findings(facts: ClusterFacts, link: str) -> Iterator[Told]:
    """State topics whose retention or cleanup policy deletes what they must keep; those of which the brokers tell nothing are left out."""
    for topic in state_topics(link):
        config = facts.configs.get(topic, {})
        if (kept := Retention.of(config)) is None:
            continue
        note = ""
        if topic == CLAIMS_TOPIC:
            wrong = {RETENTION_MS: str(_CLAIMS_MS)} if kept.ms is not None and kept.ms < _CLAIMS_MS else {}
            what = "running mirrors are not seen, and claims are lost: status, and other mirrors, take them for ended"
        elif topic == LEDGER_TOPIC:
            # Also those that count only once the policy is set right.
            wrong = {name: "-1" for name in (RETENTION_MS, RETENTION_BYTES) if config.get(name, "-1") != "-1"}
            what = "losses that were accepted are forgotten, and found again"
            if "compact" in config[CLEANUP_POLICY].split(","):
                wrong[CLEANUP_POLICY] = "delete"
        else:
            wrong = {} if config[CLEANUP_POLICY] == "compact" else {CLEANUP_POLICY: "compact"}
            what = "what a link has copied, and what operators have ordered, is deleted with time"
            note = "  # nothing that is deleted already comes back: then run doctor again before any mirror"
        if wrong:
            now = ", ".join(f"{name}={config.get(name)}" for name in sorted(wrong))
            change = ",".join(f"{name}={value}" for name, value in sorted(wrong.items()))
            command = (
                f"{facts.tool('kafka-configs.sh')} --alter --entity-type topics --entity-name {shlex.quote(topic)}"
            )
            yield Told(
                Severity.ERROR,
                f"topic {topic}",
                f"it has {now}: {what}",
                f"{command} --add-config {shlex.quote(change)}{note}",
            )
