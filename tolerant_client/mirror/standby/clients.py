"""kafka-python's consumer and admin client that follow a link: `standby` and `link` are two more arguments.

    consumer = KafkaConsumer("orders", bootstrap_servers="a:9092", standby={"bootstrap_servers": "b:9092"}, link="A-B")

Laws:
- The operator decides when a client moves, by `promote` or `failover` (link_watch.py); how it moves says stock/moving.py.
- A client that is made after the promotion begins at the standby, and says so.  If the standby tells nothing then, for whatever
  reason, it begins at its own cluster, and moves as soon as the standby tells of the promotion.
- `standby` has all that is needed to connect, whenever the client is made: what it does not name has kafka-python's default there.
  So no password goes to a cluster for which it was not given, and a login of the one is not tried at the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tolerant_client.errors import OptionError, text_of
from tolerant_client.stock import clients, consumer, forking
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.moving import Destination, Mover

if TYPE_CHECKING:
    from tolerant_client.mirror.standby.link_watch import LinkWatch

log = logging.getLogger(__name__)

_PREFIXES: Final = ("ssl_", "sasl_")
_NAMES: Final = ("bootstrap_servers", "security_protocol", "proxy_url", "client_dns_lookup", "api_version")


def connection_to(standby: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration of connections to the standby; raises OptionError for what is none of it."""
    known = {
        name: default
        for name, default in TolerantConnectionManager.DEFAULT_CONFIG.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    if unknown := sorted(standby.keys() - known.keys()):
        raise OptionError(
            f"standby has {', '.join(unknown)}, which is no option of a connection: give it to the client"
        )
    if not standby.get("bootstrap_servers"):
        raise OptionError("standby has no bootstrap_servers: give those of the link's target")
    return {**known, **standby}


class Following(clients.Recovering):
    """The part of a client that follows a link."""

    _link_watch: LinkWatch | None = None

    @forking.repeatable
    def __init__(
        self, *args: Any, standby: Mapping[str, Any] | None = None, link: str | None = None, **configs: Any
    ) -> None:
        if (standby is None) != (link is None):
            raise OptionError("standby and link belong together: give both, or none")
        if standby is None or link is None:
            super().__init__(*args, **configs)
            return
        from tolerant_client.mirror.standby.link_watch import (
            LinkWatch,  # a client without a link does not load a mirror
        )

        to = connection_to(standby)
        self.may_move = True
        if _is_promoted(LinkWatch(to, link)):
            log.warning("Link %s is promoted: the client begins at its target %s", link, to["bootstrap_servers"])
            super().__init__(*args, **{**configs, "socks5_proxy": None, **to})
            return
        super().__init__(*args, **configs)
        mover = Mover(self)
        self._link_watch = LinkWatch(to, link, mover.net)
        mover.net.call_soon_with_future(_follow, mover, self._link_watch, to)

    def _stop_following(self) -> None:
        watch = self._link_watch
        if watch is not None and not watch.is_closed:
            watch.cluster.net.call_soon_with_future(watch.close)


def _is_promoted(watch: LinkWatch) -> bool:
    """Whether the link is promoted already; False if the standby does not tell.  Raises OptionError (link_watch.py)."""
    try:
        return bool(watch.cluster.run(watch.control).is_promoted)
    except OptionError:
        raise
    except Exception as error:  # whatever is wrong with the standby, the client's own cluster may be well
        log.warning("%s: %s", watch.unknown, text_of(error))
        return False
    finally:
        watch.close()


async def _follow(mover: Mover, watch: LinkWatch, to: Mapping[str, Any]) -> None:
    try:
        control = await watch.promoted(lambda: mover.is_wanted)
        if control is not None:
            await mover.move(Destination(to, control.copied_until, control.writes))
    except OptionError as error:
        log.error("%s", text_of(error))
    except Exception:
        log.exception("The client does not follow its link any more")
    finally:
        watch.close()


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

    def close(self, *args: Any, **options: Any) -> None:
        """Like kafka-python's; the connection to the standby ends, too."""
        self._stop_following()
        super().close(*args, **options)


class KafkaAdminClient(Following, clients.KafkaAdminClient):
    """kafka.KafkaAdminClient on tolerant connections; with `standby` and `link` it can follow a link, as KafkaConsumer does.

    In a forked child the first call rebuilds it.
    """

    def close(self, *args: Any, **options: Any) -> None:
        """Like kafka-python's; the connection to the standby ends, too."""
        self._stop_following()
        super().close(*args, **options)
