"""All checks of one or two clusters and their link; the whole examination."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.cluster.cluster import Cluster
from tolerant_client.errors import OptionError, text_of
from tolerant_client.mirror.batches.losses import LedgerRow
from tolerant_client.mirror.engine.preflight import require_same_source
from tolerant_client.mirror.follow.group_positions import OWN_GROUPS
from tolerant_client.mirror.life.lens import PartitionLag
from tolerant_client.mirror.life.lost_copies import LostCopies, lost_copies
from tolerant_client.mirror.life.mirrors import RENEWED_S, look_at_claims, look_for_forgotten, seen_mirrors
from tolerant_client.mirror.life.naming import unknown_link
from tolerant_client.mirror.life.status_reasons import unseen_texts
from tolerant_client.mirror.state.carriers import can_tell_copies
from tolerant_client.mirror.state.claims import ClaimsLog
from tolerant_client.mirror.state.control_topic import read_control
from tolerant_client.mirror.state.health import with_pause
from tolerant_client.mirror.state.lacking import without_former
from tolerant_client.mirror.state.ledger import read_ledger
from tolerant_client.mirror.state.link_control import LinkControl
from tolerant_client.mirror.state.link_topics import hidden_topics, written_topics
from tolerant_client.mirror.state.map_rows import NO_MAP, MappedTopics
from tolerant_client.mirror.state.map_topic import lost_map
from tolerant_client.mirror.state.plan import TopicSpec, plan_topics, select_topics
from tolerant_client.mirror.state.topic_filter import LinkTopics, TopicFilter, group_filter
from tolerant_client.mirror.state.topics import describe_topics, fit_topics
from tolerant_client.ops.doctor import describe, logs
from tolerant_client.ops.doctor.access import group_right_findings, transactional_id_findings
from tolerant_client.ops.doctor.checkup import Checkup, side_by_side
from tolerant_client.ops.doctor.clocks import both_clocks_findings
from tolerant_client.ops.doctor.cluster_examination import (
    Examined,
    examine_addresses,
    examine_cluster,
    examine_parts,
    watch_elections,
)
from tolerant_client.ops.doctor.connectivity import same_cluster_findings
from tolerant_client.ops.doctor.coordinators import coordinator_findings
from tolerant_client.ops.doctor.finding import Finding, Severity
from tolerant_client.ops.doctor.link_checks import (
    Backlog,
    LinkOptions,
    Retention,
    ahead_findings,
    creation_findings,
    progress_findings,
    renamed,
    retention_findings,
    size_findings,
    topic_findings,
)
from tolerant_client.ops.doctor.link_records import (
    blocked_findings,
    control_findings,
    ledger_findings,
    refusal_findings,
)
from tolerant_client.ops.doctor.rights import Duty, asked
from tolerant_client.ops.doctor.state_topics import state_topic_findings, state_topics
from tolerant_client.ops.mm2.loops import names_of
from tolerant_client.ops.service.clusters import both
from tolerant_client.security.kafka_config import kafka_python_config
from tolerant_client.stock.coordinator_partition import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_GROUPS = 200  # whose rights are checked
_PATIENCE_MS = 4_000  # with clusters that have responded
_SPEAKING_S = 60.0  # for all checks together, besides the observation time


@dataclass(frozen=True)
class Subject:
    """What to examine.

    `clusters` has Java client properties by role: "source" and "target", or "cluster" for a single one.  With `asks_control`
    the topics are those in the link's control, and `topics` those of a link without one, unless it `is_named`: then that is an error.
    `copied_groups` are those whose offsets are copied; `groups` and `transactional_ids` are more names whose coordinators are checked.
    `seconds` is how long elections and progress are observed.  `duties` are those of the link, `called` the link's names
    for the topics of the rights table.  `options` name this link in other commands: those that need its target only,
    and those that need both clusters.  `is_translated` is how the link is to be started.
    """

    clusters: Mapping[str, Mapping[str, str]]
    topics: LinkTopics = LinkTopics()
    link: str = "default"
    seconds: float = 10.0
    copied_groups: TopicFilter = group_filter()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()
    duties: frozenset[Duty] = frozenset({Duty.COPY})
    called: Mapping[str, str] = field(default_factory=dict)
    options: LinkOptions = LinkOptions()
    asks_control: bool = False
    is_named: bool = False
    is_translated: bool = False


def examine(subject: Subject, checkup: Checkup | None = None) -> Checkup:
    """Makes every check, and ends in bounded time whatever the clusters do.

    Raises OptionError for invalid options and properties.
    """
    configs = {name: kafka_python_config(java) for name, java in subject.clusters.items()}
    checkup = Checkup() if checkup is None else checkup
    checkup.names = tuple(configs)
    limit_s = _SPEAKING_S + subject.seconds + len(configs) * checkup.check_s
    examination = _Examination(subject, configs, checkup)
    thread = threading.Thread(target=checkup.guard, args=("link", examination.run), daemon=True, name="doctor")
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        checkup.cut_off(limit_s)
    return checkup


class _Examination:
    def __init__(self, subject: Subject, configs: Mapping[str, Mapping[str, Any]], checkup: Checkup) -> None:
        self._subject, self._configs, self._checkup = subject, configs, checkup
        self._found: dict[str, Examined] = {}
        self._raws: list[Cluster] = []

    def run(self) -> None:
        try:
            self._in_each(self._configs, self._meet)
            is_same = self._take_topics()
            chosen = self._choose_topics() if is_same else {}
            self._in_each(self._found, partial(self._examine, chosen))
            self._examine_coordinators()
            source, target = self._found.get("source"), self._found.get("target")
            link = (
                None
                if source is None or target is None or not is_same
                else _Link(self._subject, source, target, chosen, self._checkup)
            )
            before: dict[TopicPartition, PartitionLag] = {} if link is None else link.begin()
            self._in_each(self._found, self._watch)
            if link is not None:
                link.examine(before)
        finally:
            for raw in self._raws:
                raw.close()

    def _in_each(self, names: Iterable[str], function: Callable[[str], None]) -> None:
        side_by_side(partial(self._checkup.guard, name, partial(function, name)) for name in names)

    def _watch(self, name: str) -> None:
        watch_elections(self._checkup, self._found[name], self._subject.seconds)

    def _meet(self, name: str) -> None:
        config = self._configs[name]
        probes, raw = examine_addresses(self._checkup, name, config, self._subject.options.of_file)
        if raw is not None:
            self._raws.append(raw)
            found = examine_cluster(self._checkup, raw, probes, config)
            if found is not None:
                self._found[name] = found

    def _take_topics(self) -> bool:
        """Takes the topics of the link from its control, as the other commands do, if none were given.

        Returns whether the target knows the link and the source is the one that it copies, as far as is known: of another
        one nothing else is said.
        """
        subject, source, target = self._subject, self._found.get("source"), self._found.get("target")
        if target is None or source is None and not subject.asks_control:
            return True
        control = self._checkup.ask("control", target.raw, read_control, target.raw, subject.link)
        if control is None:
            return True
        is_known = not (subject.asks_control and subject.is_named and control.is_unwritten)
        refusal: str | None = None
        try:
            if source is not None:
                require_same_source(control, subject.link, source.facts.cluster_id)
        except OptionError as error:
            refusal = text_of(error)
        if subject.asks_control and subject.is_named and control.is_hidden:
            refusal = hidden_topics(subject.link)
        if not is_known:
            refusal = self._checkup.ask("control", target.raw, unknown_link, target.raw, subject.link)
        if refusal is not None:
            self._checkup.add(refusal_findings(subject.link, refusal))
        if not is_known or refusal is not None:
            self._subject = replace(subject, topics=LinkTopics())
            return False
        if subject.asks_control:
            self._subject = replace(subject, topics=written_topics(control, subject.link, subject.topics))
        return True

    def _choose_topics(self) -> dict[str, str]:
        """The mirror's topics: the target's name of each by its name on the source."""
        first = self._found.get("source") or self._found.get("cluster") or self._found.get("target")
        if first is None:
            return {}
        topics = self._subject.topics
        shown = [name for name, topic in first.facts.topics.items() if not topic.is_internal and not topic.error_code]
        is_target = first.raw.name == "target"
        names = filter(topics.has_source, shown) if is_target else map(topics.to_target, shown)
        try:
            chosen = select_topics(topics, dict.fromkeys(names), first.raw.name)
        except OptionError as error:
            if is_target and "source" in self._configs:
                return {}  # nobody tells which topics the source has
            severity = Severity.INFO if topics.filter == TopicFilter() else Severity.ERROR
            remedy = "Correct --topics, or allow our principal Describe on the topics: the brokers hide others"
            self._checkup.add(
                [Finding(severity, "topics", first.raw.name, f"topics {topics.filter}", str(error), remedy)]
            )
            return {}
        return {topics.to_source(name): name for name in chosen}

    def _examine(self, chosen: Mapping[str, str], name: str) -> None:
        is_target = name == "target"
        topics = chosen.values() if is_target else chosen.keys()
        subject, found = self._subject, self._found[name]
        client_id = subject.clusters[name].get("client.id", "")
        named = [subject.topics.to_target(topic) if is_target else topic for topic in literal_names(subject.topics)]
        rights = list(asked(name, subject.duties, {*topics, *named}, subject.called, found.facts.version))
        beside = state_topics(subject.link) if is_target else ()
        examine_parts(self._checkup, found, list(topics), client_id, rights, beside)

    def _examine_coordinators(self) -> None:
        """Checks coordinators for all names that any of the clusters knows, and those that the operator gave."""
        groups = {*self._subject.groups}.union(*(one.groups for one in self._found.values()))
        ids = {*self._subject.transactional_ids}.union(*(one.transactional_ids for one in self._found.values()))
        for one in self._found.values():
            self._checkup.add(coordinator_findings(one.facts, OFFSETS_TOPIC, groups))
            self._checkup.add(coordinator_findings(one.facts, TRANSACTIONS_TOPIC, ids))


def literal_names(topics: LinkTopics) -> list[str]:
    """Topics of the source that the expressions name in full: they count even if the brokers hide them from us."""
    return sorted(
        {
            names.start
            for expression in topics.filter.include
            for names in names_of(expression)
            if names.is_exact and topics.takes(names.start)
        }
    )


class _Link:
    """The checks that need both clusters."""

    def __init__(
        self, subject: Subject, source: Examined, target: Examined, chosen: Mapping[str, str], checkup: Checkup
    ) -> None:
        self._subject, self._checkup = subject, checkup
        self._source, self._target = source, target
        self._chosen = chosen
        self._claims: ClaimsLog | None = None
        self._looked = 0.0  # at the claims

    def begin(self) -> dict[TopicPartition, PartitionLag]:
        """What is compared with a later look: the claims, and the lag."""
        self._claims = self._checkup.ask("control", self._target.raw, look_at_claims, self._target.raw)
        self._looked = time.monotonic()
        return self.look()

    def _ask_both(
        self, control: LinkControl, function: Callable[..., Any], *args: Any, is_of_over: bool = False
    ) -> Any:
        """The result of a check's coroutine that needs both clusters on one event loop, of a link that is not over; None without one.

        `is_of_over`: the check is one of a link that is.
        """
        subject = self._subject
        if control.is_over != is_of_over:
            return None
        clusters = subject.clusters["source"], subject.clusters["target"]
        with both(*clusters, subject.topics.names, _PATIENCE_MS, subject.options.of_file) as (source, target):
            return self._checkup.ask("control", target, function, source, target, *args)

    def _stopped(self, control: LinkControl) -> dict[TopicPartition, str]:
        """Partitions that both clusters serve and that stop a mirror of the link, as `status` finds them; and why."""
        on_source = logs.serving(self._source.facts, self._chosen)
        both_have = {TopicPartition(self._chosen[p.topic], p.partition) for p in on_source}
        both_have &= logs.serving(self._target.facts, self._chosen.values()).keys()
        if not both_have:
            return {}
        asked = self._subject.link, control, sorted(both_have), self._subject.is_translated
        return self._ask_both(control, logs.find_stopped, *asked) or {}

    def look(self) -> dict[TopicPartition, PartitionLag]:
        """The lag of each partition that serves on both sides."""
        source, target, ask = self._source, self._target, self._checkup.ask
        leaders = logs.serving(target.facts, self._chosen.values())
        if not leaders:
            return {}
        # The target first: then what the source gains in between is lag, and no target seems to be ahead.
        positions = (
            ask("retention", target.raw, logs.positions, target.raw, self._subject.link, leaders, self._chosen) or {}
        )
        asked = {p: positions[p] for p in logs.serving(source.facts, self._chosen) if p in positions}
        return (ask("retention", source.raw, logs.lags, source.raw, asked) if asked else None) or {}

    def examine(self, before: Mapping[TopicPartition, PartitionLag]) -> None:
        source, target, checkup, link = self._source, self._target, self._checkup, self._subject.link
        checkup.add(same_cluster_findings(source.facts.cluster_id, target.facts.cluster_id))
        checkup.add(both_clocks_findings(source.quorum, target.quorum))
        self._examine_rights()
        control = checkup.ask("control", target.raw, read_control, target.raw, link)
        mapped, lost = None, None
        if control is not None:
            lost = checkup.ask("control", target.raw, lost_map, target.raw, link, control)
            mapped = NO_MAP
            if lost is None:
                mapped = checkup.ask("control", target.raw, logs.read_map, target.raw, link, control)
        self._examine_topics(control or LinkControl(), mapped or NO_MAP)
        ledger = checkup.ask("ledger", target.raw, read_ledger, target.raw)
        checkup.add(ledger_findings(link, ledger or ()))
        checkup.add(state_topic_findings(target.facts, link))
        stopped: Mapping[TopicPartition, str] = {}
        if control is not None:
            asked = (look_for_forgotten, target.raw, link, control, RENEWED_S)  # a check has 10 s
            forgotten = checkup.ask("control", target.raw, *asked)
            since = self._claims, self._looked, RENEWED_S
            mirrors = checkup.ask("control", target.raw, seen_mirrors, target.raw, link, *since)
            copies: LostCopies | None = None if control.is_promotion_begun else LostCopies()
            if control.is_promotion_begun and mapped is not None:
                copies = self._ask_both(control, lost_copies, link, control, mapped, lost, is_of_over=True)
            has_copied = bool(mapped and mapped.partitions) or any(run.has_copied for run in mirrors or ())
            is_told = bool(
                mapped and mapped.partitions or checkup.ask("control", target.raw, can_tell_copies, target.raw)
            )
            told_of = link, control, self._subject.options, lost, forgotten, copies
            checkup.add(control_findings(*told_of, has_copied=has_copied, is_told=is_told))
            stopped = self._stopped(control)
            asked_of = control, self._subject.topics, mapped or NO_MAP
            left_behind, maybe = self._ask_both(control, logs.find_gone, *asked_of) or ({}, {})
            told = with_pause(left_behind, self._subject.options.of_target)
            checkup.add(blocked_findings(link, mirrors, control, told, stopped))
            ask = "Ask who wrote the topic on the target: nothing says whether the link has"
            warned = (Severity.WARNING, "control", "link", f"link {link}")
            checkup.add(Finding(*warned, text, ask) for text in unseen_texts(maybe))
        self._examine_backlog(before, ledger or (), control, stopped)

    def _examine_rights(self) -> None:
        source, target, checkup = self._source, self._target, self._checkup
        ids = [f"tolerant-mirror-{self._subject.link}", f"tolerant-mirror-{self._subject.link}-gap-TOPIC-0"]
        may = checkup.ask("rights", target.raw, describe.may_describe_transactional_ids, target.raw, ids)
        duties = self._subject.duties
        checkup.add(transactional_id_findings(target.facts, may or {}, duties, target.who))
        if Duty.GROUPS not in duties:
            return
        wanted = self._subject.copied_groups
        known = {group for group in (*source.groups, *self._subject.groups) if not group.startswith(OWN_GROUPS)}
        groups = sorted(filter(wanted.matches, known))[:_GROUPS]
        for one in (source, target) if groups else ():
            talking = sorted(node for node in one.facts.living if node not in one.facts.silent)
            rights = checkup.ask("rights", one.raw, describe.group_rights, one.raw, groups, talking)
            checkup.add(group_right_findings(one.facts, rights or {}, duties, one.who))

    def _examine_topics(self, control: LinkControl, mapped: MappedTopics) -> None:
        source, target, checkup = self._source, self._target, self._checkup
        if not self._chosen:
            return
        wanted = checkup.ask("topics", source.raw, describe_topics, source.raw, list(self._chosen))
        hidden = {name for name, topic in target.facts.topics.items() if topic.error_code}
        visible = [name for name in self._chosen.values() if name not in hidden]
        present = checkup.ask("topics", target.raw, describe_topics, target.raw, visible)
        if wanted is None or present is None:
            return
        if any(p.topic not in present for p in mapped.copies):
            mapped = self._ask_both(control, without_former, mapped) or mapped
        copies = {name: spec for name, spec in renamed(wanted, self._chosen).items() if name not in hidden}
        checkup.add(topic_findings(copies, present, len(target.facts.living), control, mapped))
        if not control.is_over:
            self._examine_creation({name: spec for name, spec in copies.items() if name not in present})
        checkup.add(size_findings(source.facts, wanted))
        checkup.add(size_findings(target.facts, {**copies, **present}))

    def _examine_creation(self, missing: Mapping[str, TopicSpec]) -> None:
        """Asks the brokers whether they would create the missing topics (validateOnly: nothing is created)."""
        target, checkup = self._target, self._checkup
        if not missing:
            return
        create = plan_topics(missing, {}, len(target.facts.living), self._subject.topics.creation).create

        async def fit() -> tuple[list[str], str]:
            try:
                return list((await fit_topics(target.raw, create))[1]), ""
            except (OptionError, Errors.AuthorizationError, Errors.PolicyViolationError) as error:
                return [], str(error)

        warnings, refusal = checkup.ask("topics", target.raw, fit) or ([], "")
        checkup.add(creation_findings(target.facts, list(missing), warnings, refusal, target.who))

    def _examine_backlog(
        self,
        before: Mapping[TopicPartition, PartitionLag],
        ledger: Iterable[LedgerRow],
        control: LinkControl | None,
        stopped: Collection[TopicPartition],
    ) -> None:
        """What waits to be copied; of partitions that are `stopped` the cause has been told."""
        source, checkup, link = self._source, self._checkup, self._subject.link
        if control is not None and control.is_promotion_begun:
            return  # the target is independent now
        lags = {p: lag for p, lag in self.look().items() if p in before}
        if not lags:
            return
        times = checkup.ask("retention", source.raw, logs.oldest_times, source.raw, lags.values()) or {}
        sizes = {p: size for (node, p), size in source.sizes.items() if source.facts.leader_of(p) == node}
        backlogs = [
            Backlog(
                before[p],
                replace(
                    lag,
                    partition=TopicPartition(self._chosen[p.topic], p.partition),
                    oldest_ms=times.get(p),
                    bytes_per_offset=_share(sizes.get(p), lag),
                ),
            )
            for p, lag in lags.items()
        ]
        told = source.facts.configs
        retentions = {
            target: found
            for name, target in self._chosen.items()
            if (found := Retention.of(told.get(name, {}))) is not None
        }
        rows = [row for row in ledger if row.link == link]
        checkup.add(retention_findings(backlogs, retentions, rows, int(time.time() * 1000), self._subject.seconds))
        untold = [each for each in backlogs if each.now.partition not in stopped]
        checkup.add(ahead_findings(untold, self._subject.options))
        checkup.add(progress_findings(link, untold, control, self._subject.seconds))


def _share(size: int | None, lag: PartitionLag) -> float | None:
    """The mean bytes per offset of a log of this size."""
    held = (lag.stable_end or 0) - (lag.source_start or 0)
    return None if size is None or held <= 0 else size / held
