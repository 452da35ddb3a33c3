"""The command `tolerant-kafka plan`: what a mirror would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from spark_integration.cli.link import end_with, given_link, time_ms
from spark_integration.cli.options import FromTime, Json, Offsets, OffsetsKind, WhichLink
from tolerant_client.errors import OptionError
from tolerant_client.mirror.batches.losses import MirrorPolicy
from tolerant_client.mirror.follow.skipped import together
from tolerant_client.mirror.life.plan_report import Besides, LinkPlan, plan_everything
from tolerant_client.mirror.state.health import by_reason, names
from tolerant_client.ops.printing import BELOW, Table, echo, print_table

if TYPE_CHECKING:
    from tolerant_client.ops.mm2.flows import Flow


def plan(which: WhichLink, offsets: Offsets = None, from_time: FromTime = None, as_json: Json = False) -> None:
    """Show what a mirror would do. Writes nothing. Exit code 3: it would stop, leave something out, or write a loss into the ledger.

    With --config it plans a flow with all that its file enables; otherwise `mirror`, which copies topics only.
    """
    if which.config is not None and offsets is not None:
        raise OptionError("--config sets whether offsets are translated: leave --offsets out")
    if which.config is not None and from_time is not None:
        raise OptionError("A flow of --config copies from the first record on: leave --from out")
    # --topics describe a new start; without them the link must have recorded its own.
    given = given_link(which, needs_source=True, is_start=which.topics is not None).known()
    besides, policy = Besides(), MirrorPolicy()
    is_translated = None if offsets is None else offsets is OffsetsKind.TRANSLATED
    if given.flow is not None:
        besides, policy, is_translated = besides_of(given.flow), given.flow.policy, given.flow.offsets == "translated"

    found = given.run(
        lambda origin, there: plan_everything(
            origin,
            there,
            given.link,
            given.link_topics,
            besides,
            of_file=given.flow is not None,
            is_translated=is_translated,
            policy=policy,
            from_ms=None if from_time is None else time_ms("--from", from_time),
        )
    )
    end_with(found, as_json, _show)


def _show(found: LinkPlan) -> None:
    title = f"link {found.link}: plan, {found.offsets} offsets"
    table = Table("topic", "what", "partitions", "replicas", "offsets to copy", "why", title=title)
    for t in found.topics:
        width = f"{t.target_partitions} to {t.partitions}" if t.action == "grow" else str(t.partitions)
        waiting = "" if t.to_copy is None else f"{t.to_copy:,}"
        why = BELOW if t.why and any(t.why in text for text in found.refusals) else t.why
        table.add_row(t.topic, t.action, width, str(t.replication_factor), waiting, why)
    if found.topics:
        print_table(table)
    for line in _lines(found):
        echo(line)


def besides_of(flow: Flow) -> Besides:
    """What a flow does besides copying: its duties, which flow_links.duties_of derives from the same settings."""
    policy = flow.names.policy
    duties = (
        (f"sync of the offsets of groups {flow.groups}", flow.sync_group_offsets_s),
        ("sync of topic configurations", flow.sync_topic_configs_s),
        ("sync of ACLs", flow.sync_topic_acls_s),
    )
    others = [f"{what}, every {interval_s:g} s" for what, interval_s in duties if interval_s is not None]
    if flow.emit_heartbeats_s is not None:
        others.append(f"heartbeats into topic {policy.heartbeats_topic()}, every {flow.emit_heartbeats_s:g} s")
    if flow.emit_checkpoints_s is not None:
        topic = policy.checkpoints_topic(flow.source_alias)
        others.append(f"checkpoints of groups {flow.groups} into topic {topic}, every {flow.emit_checkpoints_s:g} s")
    if flow.throttle_bytes is not None:
        others.append(f"at most {flow.throttle_bytes:,} bytes/s, unless the operator sets another rate")
    return Besides(
        None if flow.sync_group_offsets_s is None else flow.groups,
        None if flow.sync_topic_configs_s is None else flow.config_properties_exclude,
        flow.use_defaults_from,
        flow.sync_topic_acls_s is not None,
        tuple(others),
    )


def _lines(found: LinkPlan) -> Iterator[str]:
    yield from (f"refused: {text}" for text in found.refusals)
    waiting = {TopicPartition(t.topic, number): why for t in found.topics for number, why in t.waiting.items()}
    paused = {TopicPartition(t.topic, number): why for t in found.topics for number, why in t.paused.items()}
    for kind, told in (("waits", waiting), ("paused", paused)):
        yield from (f"{kind}: {names(of)}: {why}" for why, of in by_reason(told).items())
    yield from (f"waits: {held}" for held in found.held)
    yield from (f"will be in the ledger as lost: {text}" for text in found.losses)
    yield from (f"warning: {text}" for text in found.warnings)
    yield from (f"durability: {text}" for text in found.durability)
    if found.configs is not None:
        for c in found.configs.changed:
            before = f"{c.before} (a default)" if c.before == c.after else c.before
            yield f"configuration: {c.topic} {c.name}: {before} to {c.after or 'the default'}"
        yield from (f"configuration left: {left}" for left in found.configs.left)
    if found.acls is not None:
        yield from (f"ACL: {acl}" for acl in found.acls.added)
        yield from (f"ACLs are not copied: {left}" for left in found.acls.left)
    if found.groups is not None:
        for m in found.groups.moved:
            partition = m.position.partition
            yield f"group {m.position.group}: {partition.topic}-{partition.partition} moves to offset {m.position.offset:,}"
        yield from (f"{'note' if left.is_note else 'groups left'}: {left}" for left in together(found.groups.left))
    yield from (f"also: {text}" for text in found.others)
