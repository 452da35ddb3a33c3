"""Which topics, groups and settings a link takes: lists of regular expressions, as in MirrorMaker 2.

Facts: DefaultTopicFilter.java, DefaultGroupFilter.java, DefaultConfigPropertyFilter.java and
MirrorSourceConnector.shouldReplicateTopic of connect/mirror.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec.structs import asdict, replace

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.replication_policy import TopicNames, is_cycle
from tolerant_client.state_json import MOST, converted, decoded

# Ledgers, offset maps and controls describe their own cluster: two links in opposite directions must not mix them.
OWN_TOPICS = "tolerant-mirror-"
# What brokers write there is of their own cluster (Topic.java, INTERNAL_TOPICS and the metadata log).
KAFKA_TOPICS = ("__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state")

ALL = (".*",)
TOPICS_EXCLUDE = (r"mm2.*\.internal", r".*\.replica", "__.*")  # Kafka 4.2; older ones have .*[\-\.]internal
GROUPS_EXCLUDE = ("console-consumer-.*", "connect-.*", "__.*")
CONFIG_PROPERTIES_EXCLUDE = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.difference\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)

_COMMA = re.compile(r"\s*,\s*")
_COMMA_BETWEEN = re.compile(r"\s*,\s*(?![^{\[]*[}\]])")  # not within brackets
# Syntax that java.util.regex reads differently from re, or that re does not know.
_JAVA_ONLY = re.compile(r"\\[pPRhHvVXGzkN]|(?<!\\)\[(?:[^\]\[\\]|\\.)*?(?:&&|\[)|(?<!^)\(\?[a-zA-Z]*(?:-[a-zA-Z]+)?\)")
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")  # which hold for the whole filter, and are allowed at its start alone
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)


def refuse_java_only(shown: str, expression: str) -> None:
    """Raises OptionError for syntax that java.util.regex reads differently from re (as a class within a class), or that re lacks."""
    if java := _JAVA_ONLY.search(expression):
        raise OptionError(f"{shown} uses {java[0]!r}, which only Java's regular expressions know; write it without")


def _compiled(expressions: tuple[str, ...]) -> re.Pattern[str] | None:
    if not expressions:
        return None  # an empty expression would match an empty name
    expression = "|".join(expressions)  # as MirrorUtils.compilePatternList: (?i) before the first one holds for all
    plain = _QUOTED.sub(lambda quoted: re.escape(quoted[1]), expression)
    refuse_java_only(repr(expression), plain)
    try:
        return re.compile(re.sub(r"\(\?<(?=[a-zA-Z])", "(?P<", plain), re.ASCII)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise OptionError(
            f"{expression!r} is not a regular expression ({error}); quote it and escape special characters"
        ) from error


class TopicFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Names that one of `include` matches as a whole, and none of `exclude`; an empty list matches nothing.

    Each is a Java regular expression that Python reads the same way.  Raises OptionError for others.
    """

    include: tuple[str, ...] = ALL
    exclude: tuple[str, ...] = ()

    def __str__(self) -> str:
        without = f" without {', '.join(self.exclude)}" if self.exclude else ""
        return ",".join(self.include) + without

    def __post_init__(self) -> None:
        for expression in (*self.include, *self.exclude):
            try:
                expression.encode()
            except UnicodeEncodeError as error:
                raise OptionError(f"{expression!r} is not UTF-8, as Kafka's names are; write it in UTF-8") from error
        self.matches("")  # raises for a wrong expression at once

    def matches(self, name: str) -> bool:
        include, exclude = self._patterns
        if include is None or not include.fullmatch(name):
            return False
        return exclude is None or not exclude.fullmatch(name)

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        return _compiled(self.include), _compiled(self.exclude)


def group_filter(include: str = ".*", exclude: Iterable[str] = GROUPS_EXCLUDE) -> TopicFilter:
    """`groups` of MirrorMaker 2, with its default exclusions."""
    return TopicFilter(names_of(include), tuple(exclude))


def names_of(text: str) -> tuple[str, ...]:
    """A list as Kafka's ConfigDef reads it: split at commas, without the blanks around them."""
    return tuple(_COMMA.split(text.strip())) if text.strip() else ()


def expressions_of(text: str) -> tuple[str, ...]:
    """Regular expressions separated by commas, except commas within one, as in "a{1,2}" and "[,]"."""
    return tuple(_COMMA_BETWEEN.split(text.strip()))


class TopicCreation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How missing topics are created on the target.

    `replication_factor` None means the source topic's, -1 the target's default.  Properties that an expression of
    `config_exclude` matches are not copied.  If `use_defaults_from` is "source", the defaults of the source's brokers are set,
    too (`use.defaults.from` of MirrorMaker 2).
    """

    replication_factor: Annotated[int, msgspec.Meta(ge=-1, le=MOST)] | None = None
    config_exclude: tuple[str, ...] = ()
    use_defaults_from: str = "target"


class LinkTopics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which topics of the source a link copies, their names on the target, and how they are created there.

    Without `names` they keep their names, and only Kafka's and the mirror's own are never copied.  With
    them the rules of MirrorMaker 2 hold: no internal topic, none that came from `target_alias`, and
    heartbeats even if the filter leaves them out.  `also` has the filters of former starts.  A link that `waits_for_topics` may
    start with none.
    """

    filter: TopicFilter = TopicFilter()
    names: TopicNames | None = None
    target_alias: str = ""
    copies_heartbeats: bool = True
    waits_for_topics: bool = False
    creation: TopicCreation = TopicCreation()
    also: tuple[TopicFilter, ...] = ()

    def __str__(self) -> str:
        return " and ".join(map(str, (self.filter, *self.also)))

    def joined(self, former: LinkTopics) -> LinkTopics:
        """These topics and all that the link took before; raises OptionError if those were named by other rules.

        A file whose topics keep their names may continue a link that was begun without a file.
        """
        goes_on = former.names is None and self.names is not None and self.names.keeps
        if (self.names, self.target_alias) != (former.names, former.target_alias) and not goes_on:
            begun = (
                "with --source, --target and --topics"
                if former.names is None
                else "with --config and the file that began it"
            )
            raise OptionError(
                f"The link was begun with other rules for the names of its topics ({former}): start it {begun}, as before, or"
                " give another --link for other topics"
            )
        kept = [f for f in (*self.also, former.filter, *former.also) if f != self.filter]
        return replace(
            self,
            also=tuple(dict.fromkeys(kept)),
            copies_heartbeats=self.copies_heartbeats or former.copies_heartbeats,
        )

    @staticmethod
    def of(topics: LinkTopics | str) -> LinkTopics:
        """From regular expressions separated by commas: the topics whose whole name one of them matches.

        Raises OptionError if one of them is the name of a topic of Kafka's own, which is never copied.
        """
        if isinstance(topics, LinkTopics):
            return topics
        expressions = expressions_of(topics)
        if own := sorted(set(KAFKA_TOPICS).intersection(expressions)):
            raise OptionError(
                f"{own[0]} is Kafka's own topic: what it holds is of its cluster, and it is not copied; take it out of the"
                " topics (--groups has group offsets follow)"
            )
        return LinkTopics(TopicFilter(expressions))

    def takes(self, topic: str) -> bool:
        """Whether the link copies this topic of the source (its name there)."""
        if topic.startswith(OWN_TOPICS) or topic in KAFKA_TOPICS:
            return False
        is_named = any(f.matches(topic) for f in (self.filter, *self.also))
        if self.names is None:
            return is_named
        policy = self.names.policy
        is_wanted = is_named or (self.copies_heartbeats and policy.is_heartbeats(topic))
        return is_wanted and not policy.is_internal(topic) and not is_cycle(policy, topic, self.target_alias)

    def to_target(self, topic: str) -> str:
        return topic if self.names is None else self.names.to_target(topic)

    def to_source(self, topic: str) -> str:
        """Raises OptionError for a name that no topic of this link can have on the target."""
        return topic if self.names is None else self.names.to_source(topic)

    def writes(self, name: str) -> bool:
        """Whether the link has this topic on its target."""
        return self.has_source(name) and self.takes(self.to_source(name))

    def has_source(self, name: str) -> bool:
        """Whether a topic of the target has a name that a topic of this link can have, even if the link does not take it."""
        try:
            self.to_source(name)
        except OptionError:
            return False
        return True

    @property
    def option(self) -> str | None:
        """The regular expressions of an option --topics that takes the same; None if no option says it."""
        filters = (self.filter, *self.also)
        has_flags = any(_FLAGS.match(expression) for f in filters for expression in f.include)
        if self.names is not None or any(f.exclude for f in filters) or has_flags and len(filters) > 1:
            return None
        return ",".join(dict.fromkeys(expression for f in filters for expression in f.include))

    def to_json(self) -> str:
        return msgspec.json.encode({**asdict(self), "names": self.names and self.names.to_json()}).decode()

    @staticmethod
    def from_json(written: str) -> LinkTopics:
        """Raises OptionError for text that to_json did not write."""
        try:
            found = decoded(written, dict[str, Any])
            names = msgspec.convert(found.get("names"), str | None)
            named = {"filter": found["filter"], "names": None if names is None else TopicNames.from_json(names)}
            return converted({**found, **named}, LinkTopics)
        except (ValueError, KeyError) as error:
            raise OptionError(f"Not the topics of a link ({str(error)[:_SHOWN]}): {written[:_SHOWN]!r}") from error


_SHOWN = 200  # characters of text that cannot be read
