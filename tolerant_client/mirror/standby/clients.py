"""kafka-python's clients that follow a link: `standby` and `link` are two more arguments.

    consumer = KafkaConsumer("orders", bootstrap_servers="a:9092", standby={"bootstrap_servers": "b:9092"}, link="A-B")

Laws:
- The operator decides when a client moves, by `promote` or `failover` (link_watch.py); how it moves says stock/moving.py.
- A client that is made after the promotion begins at the standby, and says so.  If the standby tells nothing within FIRST_WORD_S, for
  whatever reason, it begins at its own cluster, and moves as soon as the standby tells of the promotion; if its own cannot be
  reached either, what the standby has told meanwhile counts.
- A client that has moved follows the way back (way_back.py), and home it follows the next way there, and so on.  One that is made
  goes the same way, promotion by promotion, before it begins where the last one led.
- A client whose link is another cluster's is refused; one that learns of that later stays where it is.  Once the link is promoted, a
  client that is made begins at the standby all the same, and is warned: a source that is made anew has a new id, and clients that are
  started again with the same arguments must come up.
- `standby` has all that is needed to connect, whenever the client is made: what it does not name has kafka-python's default there.
  So no password goes to a cluster for which it was not given, and a login of the one is not tried at the other.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as Errors
from kafka.structs import TopicPartition

from tolerant_client.errors import OptionError
from tolerant_client.stock import clients, consumer, forking
from tolerant_client.stock.client_metrics import register_held
from tolerant_client.stock.connection_options import check_connection
from tolerant_client.stock.held_batches import MIRRORED
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.moving import Move, Mover, topics_of

if TYPE_CHECKING:
    from tolerant_client.mirror.standby.follower import Follower
    from tolerant_client.mirror.standby.link_watch import LinkWatch
    from tolerant_client.mirror.standby.way_back import Led, WayBack
    from tolerant_client.mirror.state.link_control import LinkControl

log = logging.getLogger(__name__)

_ACKS: Final = (0, 1, -1, "all")
MIRRORED_TIMEOUT_MS: Final = 120_000
OWN_ID_MS: Final = 2_000
_PREFIXES: Final = ("ssl_", "sasl_")
_NAMES: Final = ("bootstrap_servers", "security_protocol", "proxy_url", "client_dns_lookup", "api_version")
_DEFAULTS: Final = {
    name: default
    for name, default in TolerantConnectionManager.DEFAULT_CONFIG.items()
    if name in _NAMES or name.startswith(_PREFIXES)
}


def connection_to(standby: Any) -> dict[str, Any]:
    """The whole configuration of connections to the standby; raises OptionError for what is none of it, or cannot connect."""
    if not isinstance(standby, Mapping):
        raise OptionError('standby is no dict with options, as {"bootstrap_servers": "HOST:PORT"}')
    if unknown := sorted(standby.keys() - _DEFAULTS.keys()):
        raise OptionError(
            f"standby has {', '.join(unknown)}, which is no option of a connection: give it to the client"
        )
    if not standby.get("bootstrap_servers"):
        raise OptionError("standby has no bootstrap_servers: give those of the link's target")
    to = {**_DEFAULTS, **standby}
    check_connection(to, "standby")
    return to


def waits_for_standby_ms(acks: Any, link: Any, timeout_ms: Any) -> float | None:
    """How long a producer's record may wait for the standby; None unless `acks` is MIRRORED.  Pure; raises OptionError."""
    if acks != MIRRORED:
        if timeout_ms is not None:
            raise OptionError(f'mirrored_timeout_ms belongs to acks="{MIRRORED}": leave it out, or give both')
        if acks not in _ACKS or isinstance(acks, bool):
            raise OptionError(f'acks is {acks!r}: give 0, 1 or "all", or "{MIRRORED}" with standby and link')
        return None
    if link is None:
        raise OptionError(f'acks="{MIRRORED}" needs standby and link: give both, or acks="all"')
    waits_ms = MIRRORED_TIMEOUT_MS if timeout_ms is None else timeout_ms
    if isinstance(waits_ms, bool) or not isinstance(waits_ms, int | float) or not waits_ms > 0:
        raise OptionError(f"mirrored_timeout_ms is {timeout_ms!r}: give milliseconds above 0")
    return waits_ms


def own_connection(configs: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration of connections to a client's own cluster."""
    own = {name: value for name, value in configs.items() if name in _DEFAULTS}
    if (proxy := configs.get("socks5_proxy")) is not None:  # as kafka-python's manager takes it
        own.setdefault("proxy_url", proxy)
    return {**_DEFAULTS, **own}


class Following(clients.Recovering):
    """The part of a client that follows a link."""

    _link_watch: LinkWatch | None = None

    @forking.repeatable
    def __init__(
        self,
        *args: Any,
        standby: Mapping[str, Any] | None = None,
        link: str | None = None,
        **configs: Any,
    ) -> None:
        make = partial(super().__init__, *args)
        if (standby is None) != (link is None):
            raise OptionError("standby and link belong together: give both, or none")
        if standby is None or link is None:
            make(**configs)
            return
        if not isinstance(link, str) or not link:
            raise OptionError(f"link is {link!r}: give the name of a link")
        if configs.get("transactional_id") is not None:
            raise OptionError(
                "A producer with a transactional_id cannot follow a link: leave out standby and link, and make a new producer on the"
                " standby after the promotion"
            )
        # A client without a link does not load a mirror.
        from tolerant_client.mirror.standby.follower import Follower
        from tolerant_client.mirror.standby.link_watch import FIRST_WORD_S, LinkWatch

        to, own = connection_to(standby), own_connection(configs)
        self.may_move = True
        watch = LinkWatch(to, link)
        try:
            first = watch.start()
            control = _told(first, FIRST_WORD_S)
            if not first.done():
                log.warning("%s yet: %s has not responded for %s s", watch.unknown, watch.standby, FIRST_WORD_S)
            if not _is_promoted(control):
                try:
                    make(**configs)
                except Errors.KafkaError:  # its own cluster may be lost, of which the standby has told meanwhile
                    control = _told(first, 0.0)
                    if first.done() and not _is_promoted(control):  # which is old by now
                        watch.close()
                        watch = LinkWatch(to, link)
                        control = _told(watch.start(), FIRST_WORD_S)
                    if not _is_promoted(control):
                        raise
            if control is not None and control.is_promoted:
                watch.close()
                self._follow(*self._begin_after_promotion(make, own, to, link, control, configs))
                return
            follower = Follower(Mover(self), own, to)
            try:
                if control is not None:
                    follower.heard(link, control)
                self._prepare(watch, follower)
            except OptionError:
                super().close()  # type: ignore[misc]  # of the client
                raise
        except BaseException:
            watch.close()
            raise
        self._follow(watch, follower)

    def _follow(self, watch: LinkWatch, follower: Follower) -> None:
        self._link_watch = watch
        watch.follow(follower)
        if not follower.is_wanted:  # it was closed meanwhile, by another thread
            watch.close()

    def _prepare(self, watch: LinkWatch, follower: Follower) -> None:
        """Before the client follows: what it needs to know besides.  Raises OptionError."""

    def _begin_after_promotion(
        self,
        make: partial[None],
        own: Mapping[str, Any],
        to: Mapping[str, Any],
        link: str,
        control: LinkControl,
        configs: Mapping[str, Any],
    ) -> tuple[WayBack, Follower]:
        """Begins where the last promotion has led: at the standby, or at the client's own cluster; returns what it follows there."""
        from tolerant_client.mirror.standby.follower import Follower
        from tolerant_client.mirror.standby.link_watch import FIRST_WORD_S
        from tolerant_client.mirror.standby.way_back import Led, led_on

        led, this = Led(link, control, here=to, left=own), weakref.ref(self)
        named = set(make.args) if isinstance(self, consumer.KafkaConsumer) else set()  # before it is made
        led, back = led_on(led, lambda: topics_of(this) or set(named), FIRST_WORD_S)
        try:
            if led.here is to:
                self._begin_at_standby(make, to, led.link, led.control, configs)
            else:
                make(**configs)
            named.clear()  # by now the consumer knows what it reads
            self._begin_beside_movers(led, back)
        except BaseException:
            back.close()
            raise
        return back, Follower(Mover(self), led.here, led.left, led.control)

    def _begin_at_standby(
        self,
        make: Callable[..., None],
        to: Mapping[str, Any],
        link: str,
        control: LinkControl,
        configs: Mapping[str, Any],
    ) -> None:
        source_id = control.source_cluster_id
        log.warning(
            "Link %s from cluster %s is promoted: the client begins at its target %s",
            link,
            source_id,
            to["bootstrap_servers"],
        )
        make(**{**configs, "socks5_proxy": None, **to})
        _compare_ids(link, source_id, configs)

    def _begin_beside_movers(self, led: Led, back: WayBack) -> None:
        if (
            isinstance(self, consumer.KafkaConsumer)
            and (group := self.config["group_id"]) is not None
            and led.is_recent(time.time())
        ):
            self._coordinator.begins_beside_movers(Move(back.destination(group), self))

    def _stop_following(self) -> None:
        if self._link_watch is not None:
            self._link_watch.close()


def _told(first: futures.Future[LinkControl], within_s: float) -> LinkControl | None:
    """What the standby told first, None if it tells nothing.  Raises OptionError (link_watch.py)."""
    try:
        return first.result(within_s)
    except OptionError:
        raise
    except Exception:  # whatever is wrong with the standby, the client's own cluster may be well
        return None


def _compare_ids(link: str, source_id: str | None, configs: Mapping[str, Any]) -> None:
    """Warns if the client's own cluster is not the one that the link copied from; nobody waits for it, as it may be lost."""
    from tolerant_client.cluster.cluster import Cluster

    def compare() -> None:
        try:
            with Cluster(own_connection(configs), name="client's cluster") as cluster:
                cluster.run(cluster.connect, OWN_ID_MS)
                own = cluster.run(cluster.cluster_id)
        except Exception as error:
            log.debug("The client's own cluster does not tell its id: %s", error)
            return
        if None not in (own, source_id) and own != source_id:
            log.warning(
                "Link %s copied from cluster %s, and at the client's bootstrap_servers is cluster %s by now: unless that was made anew"
                " there, the client has the link of another cluster, and reads at its target",
                link,
                source_id,
                own,
            )

    threading.Thread(target=compare, name="kafka-own-id", daemon=True).start()


def _is_promoted(control: LinkControl | None) -> bool:
    return control is not None and control.is_promoted


class KafkaConsumer(Following, consumer.KafkaConsumer):
    """kafka.KafkaConsumer that recovers from lost, late, duplicate and misnumbered responses, decodes in bulk,
    checks an OffsetOutOfRange before it believes it, and can follow a link to a standby cluster.

    Besides kafka-python's options it takes `recovery_policy`, `recovery_listener`, `metadata_recovery_strategy` and
    `metadata_recovery_rebootstrap_trigger_ms` (docs/clients.md), and `standby`, the options that connect to the target of the link
    `link`.  `recovery_counters` says what happened so far.

    In a forked child the first call rebuilds it: in a group as a new member,
    else at the positions it had; a loop over it that the parent began raises.
    With a `group_instance_id` calls raise IllegalStateError there.
    Raises OptionError for a link that cannot be followed.
    """

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Like kafka-python's; after a move an offset is one of the next cluster, unless it may be of either (moving.py)."""
        self._fetcher.settle_move()
        super().seek(partition, offset)
        if (place := self._fetcher.sought(partition, offset)) != offset:
            super().seek(partition, place)

    def position(self, *args: Any, **options: Any) -> Any:
        """Like kafka-python's; after a move that on the next cluster."""
        self._fetcher.settle_move()
        return super().position(*args, **options)

    def close(self, *args: Any, **options: Any) -> None:
        """Like kafka-python's; the connection to the standby ends, too."""
        self._stop_following()
        super().close(*args, **options)


class KafkaProducer(Following, clients.KafkaProducer):
    """kafka.KafkaProducer that repeats what a broker de-duplicates, and nothing else.

    With `enable_idempotence=False` (or options that imply it: acks=0 or 1, more than
    5 requests in flight) records whose response was lost are sent again as by
    kafka.KafkaProducer, at least once; with `retries=0` they fail with OutcomeUnknownError.

    In a forked child the first call rebuilds it, with a producer id of its own.
    Records sent before the fork are the parent's: their futures never complete in
    the child, and its flush() does not wait for them.  With a `transactional_id`
    calls raise IllegalStateError there.

    With `standby`, the options that connect to the target of the link `link`, it follows that link, as KafkaConsumer does: a
    record that it waits for then is acknowledged with its offset there, if it was copied, else sent there.  With `acks="mirrored"`
    a record is acknowledged once the standby has it, too; after `mirrored_timeout_ms` it fails with NotMirroredError.
    Raises OptionError for a link that cannot be followed, and for a `transactional_id` beside it.
    """

    @forking.repeatable
    def __init__(self, *args: Any, mirrored_timeout_ms: float | None = None, **configs: Any) -> None:
        acks = configs.get("acks", "all")
        self._mirrored_timeout_ms = waits_for_standby_ms(acks, configs.get("link"), mirrored_timeout_ms)
        if self._mirrored_timeout_ms is not None:
            configs["acks"] = "all"
        super().__init__(*args, **configs)

    def _prepare(self, watch: LinkWatch, follower: Follower) -> None:
        if self._mirrored_timeout_ms is None:
            return
        if not self._sender.is_idempotent:
            raise OptionError(
                'acks="mirrored" needs an idempotent producer: leave out enable_idempotence=False and what implies it'
            )
        check = partial(follower.heard, watch.link)
        self._sender.held = watch.report_copies(self._sender, self._mirrored_timeout_ms, check)
        if self._metrics:
            register_held(self._metrics, self._sender.held)

    def close(self, *args: Any, **options: Any) -> None:
        """Like kafka-python's; the connection to the standby ends, too, once nothing waits any more that could move.

        If that takes longer than it may, the error leaves the producer open, and following.
        """
        is_made = hasattr(self, "config")
        try:
            if is_made:
                super().close(*args, **options)
        finally:
            if not is_made or getattr(self, "_closed", True):
                self._stop_following()


class KafkaAdminClient(Following, clients.KafkaAdminClient):
    """kafka.KafkaAdminClient on tolerant connections; with `standby` and `link` it can follow a link, as KafkaConsumer does.

    In a forked child the first call rebuilds it.
    """

    def close(self, *args: Any, **options: Any) -> None:
        """Like kafka-python's; the connection to the standby ends, too."""
        self._stop_following()
        super().close(*args, **options)
