"""How a connection manager finds the brokers: at the start, when none of those that it knows can be connected to, and of
another cluster that it moves to.

Laws:
- No bootstrap address holds up another one, or anybody who knows a broker.
- A refused login ends the first connection at once.  TLS that is refused and a mechanism that is not offered do not, as in
  kafka-python: an address may stand for several brokers, and a rolling restart may be about to cure them.  They say more than
  a failure to connect, so the error names them.  Who prefers an early error to a late connection sets `ends_refused`:
  then they are believed once every address has refused us, and nothing else, _TRIES times.
- A move is one step of the event loop: before it all requests belong to the former cluster, after it all to the next one.
  Node ids, topic ids and coordinators are the former one's, so nothing of what was known is kept.
- A coroutine goes on some turns of the event loop after its response has come.  So a client leaves first: it closes its
  connections, sends nothing, and waits until whatever came from the former cluster has been applied to what is known of that one.
- The next cluster is looked for until it responds, whatever it refuses meanwhile: nobody else would ask it again.  Each of its addresses
  is tried once a second, since all members of a group should find it at about the same time.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import ClientMovesError, SslAuthenticationError, text_of
from tolerant_client.stock.stock_names import Future, KafkaConnectionManager

log = logging.getLogger(__name__)

BESIDE_S = 1.0  # after which the next bootstrap address is tried in parallel
_LAST_WORDS_S = 0.25  # in which attempts that end at the deadline may report why
_TRIES = 5  # so often each address refuses us before that is believed
# No retry cures these; IncompatibleBrokerVersion may come from a controller, for example.
_NOT_CURED = (Errors.IncompatibleBrokerVersion, Errors.SaslAuthenticationFailedError, Errors.AuthorizationError)
REFUSED = (SslAuthenticationError, Errors.UnsupportedSaslMechanismError)
_TURNS = 20  # of the event loop: more than any coroutine here needs to go on after a response
_LONGEST_PAUSE_S = 30.0  # between two searches for the cluster of a move
_SILENT = (Errors.KafkaTimeoutError, Errors.RequestTimedOutError)


def _last(failures: dict[Any, BaseException], brokers: Iterable[Any]) -> str:
    """What the last of them says, of those that say most, with the address if there are several."""
    if not failures:
        return ""
    node_id, failure = sorted(failures.items(), key=lambda each: _says(each[1]))[-1]
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in brokers}
    said = text_of(failure)
    is_named = len(addresses) == 1 or addresses[node_id] in said
    return f": {said}" if is_named else f": {addresses[node_id]}: {said}"


def _says(failure: BaseException) -> int:
    """How much it tells: 0 for silence, 2 if one side has refused the other, in the TLS handshake or at the login."""
    if isinstance(failure, _SILENT) or isinstance(failure.__cause__, _SILENT):
        return 0
    return 2 if isinstance(failure, (Errors.BrokerResponseError, SslAuthenticationError)) else 1


class Bootstrap(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python is untyped
    """The part of the connection manager that asks the bootstrap addresses."""

    cluster: Any
    ends_refused = False
    broker_version_data: Any
    is_misunderstood = False  # a bootstrap address accepted a connection, then broke it off: another protocol
    _accepted: set[Any]  # nodes that accepted a TCP connection
    _failures: dict[Any, BaseException]  # nodes whose last attempt to connect failed, the newest at the end
    _disproved: set[Any]  # nodes that do not respond in order, so that probes prove nothing
    _bootstrapping: Any = None  # done when the addresses have been asked
    is_leaving = False  # a move has begun: nothing is sent
    moves = 0

    async def rebootstrap(self, *, resets: bool) -> None:
        """Asks each bootstrap address once more for the brokers, which may have other addresses by now.

        With `resets` these are connected to at once, whatever failed before.  Raises KafkaTimeoutError if none tells them,
        or the error of a refused login.
        """
        moves, known = self.moves, {broker.node_id: (broker.host, broker.port) for broker in self.cluster.brokers()}
        for broker in self.cluster.bootstrap_brokers():
            self.reset_backoff(broker.node_id)
        await self._do_bootstrap(
            time.monotonic() + self.config["socket_connection_setup_timeout_ms"] / 1000, is_once=True
        )
        for broker in self.cluster.brokers() if moves == self.moves else ():
            has_moved = known.get(broker.node_id) != (broker.host, broker.port)
            if resets or has_moved:
                self.reset_backoff(broker.node_id)
            if has_moved:
                self.close(broker.node_id)  # a connection to its former address

    async def leave(self) -> None:
        """Ends all that is in flight, as lost connections do; nothing is sent from then on until `move`."""
        self.is_leaving = True
        left = list(self._conns.values())
        self._conns.clear()
        for connection in left:
            connection.close(ClientMovesError("the client moves to another cluster"))
        for _ in range(_TURNS):
            await self._net.sleep(0)

    def move(self, config: Mapping[str, Any]) -> Any:
        """Belongs to the cluster that `config` (kafka-python's keys) connects to; on the event loop, after `leave`.

        Returns at once a future that is done when the next cluster has told its brokers, which who needs any broker waits for, too.
        """
        self.config.update(config)
        self.cluster.forget(config)
        self.broker_version_data = None
        for failures in (self._backoff, self._failures, self._disproved, self._accepted):
            failures.clear()
        self.is_leaving, self.moves = False, self.moves + 1
        return self.call_soon(self._find_cluster)

    async def _find_cluster(self) -> None:
        pause_s, told = BESIDE_S, ""
        while not self.closed:
            try:
                await self.bootstrap_async()
            except Exception as error:
                if told != (told := text_of(error)):
                    log.warning("The cluster that the client has moved to cannot be used yet: %s", told)
            if self.cluster.brokers():
                return
            await self._net.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _do_bootstrap(self, deadline: float | None, *, is_once: bool = False) -> Any:
        """Finds the brokers: tries the addresses in parallel, and begins each BESIDE_S after the one before.

        kafka-python tries one random address at a time, and one whose broker is frozen takes all the time there is.
        With `is_once` it ends when each has failed.  Concurrent calls wait for each other.
        """
        while self._bootstrapping is not None:
            await self._bootstrapping
        self._bootstrapping = Future()
        try:
            return await self._ask_addresses(deadline, is_once=is_once)
        finally:
            ended, self._bootstrapping = self._bootstrapping, None
            ended.success(None)

    async def _ask_addresses(self, deadline: float | None, *, is_once: bool) -> Any:
        trying: dict[Any, Any] = {}
        failures: dict[Any, BaseException] = {}
        refusals: Counter[Any] = Counter()
        next_at = 0.0
        brokers = self.cluster.bootstrap_brokers()
        addresses = [broker.node_id for broker in brokers]
        try:
            while not self.closed and (
                deadline is None or time.monotonic() < deadline + (_LAST_WORDS_S if trying else 0.0)
            ):
                ended = {n: trying.pop(n).exception for n in [n for n, attempt in trying.items() if attempt.is_done]}
                if None in ended.values():
                    return True
                # A later attempt may be ended by our deadline or a loaded machine, which tells nothing of the address.
                failures |= {n: e for n, e in ended.items() if n not in failures or _says(e) >= _says(failures[n])}
                for node_id, error in ended.items():
                    refusals[node_id] = refusals[node_id] + 1 if isinstance(error, REFUSED) else 0
                if len(failures) == len(addresses) and not trying:
                    is_believed = self.ends_refused and min(refusals[n] for n in addresses) >= _TRIES
                    for failure in ended.values():
                        if isinstance(failure, _NOT_CURED) or (is_believed and isinstance(failure, REFUSED)):
                            raise failure
                    if is_once:
                        break
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    await self._bootstrap_wakeup(max(0.0, deadline + _LAST_WORDS_S - now))
                    continue
                delays = {n: float(self.connection_delay(n)) for n in addresses if n not in trying}
                ready = [n for n, delay in delays.items() if not delay]
                if ready and (not trying or now >= next_at):
                    node_id = random.choice([n for n in ready if n not in failures] or ready)
                    trying[node_id] = self.call_soon(self._try_address, node_id, deadline)
                    next_at = now + BESIDE_S
                    trying[node_id].add_both(lambda _: self._bootstrap_wakeup.notify())
                    continue
                waits = [delay or next_at - now for delay in delays.values()]
                waits += [] if deadline is None else [deadline - now]
                await self._bootstrap_wakeup(max(0.0, min(waits)) if waits else None)
        finally:
            for node_id in trying:
                self._forget_address(node_id)
        silent = {n: e for n, e in failures.items() if not _says(e)}
        broken_off = {n: e for n, e in failures.items() if n not in silent}
        waited_for = len(silent.keys() | (trying.keys() - broken_off.keys()))
        of = f"of {len(addresses)} addresses"
        told = [f"{len(broken_off)} {of} failed{_last(broken_off, brokers)}"] if broken_off else []
        told += [f"{waited_for} {of} did not respond{_last(silent, brokers)}"] if waited_for else []
        if not is_once:
            self.is_misunderstood = any(n in self._accepted for n in broken_off)
        servers = self.cluster.config["bootstrap_servers"]
        refusal = next((e for e in broken_off.values() if isinstance(e, REFUSED)), None)
        raise Errors.KafkaTimeoutError(
            f"Unable to bootstrap from {servers}: {'; '.join(told) or 'there was no time'}"
        ) from refusal

    async def _try_address(self, node_id: Any, deadline: float | None) -> None:
        """Asks one bootstrap address for the brokers; raises what went wrong."""
        timeout_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
        try:
            await self.get_connection(
                node_id, timeout_ms, pop_on_close=False, refresh_metadata_on_err=False, reset_backoff_on_connect=False
            )
            # Not refresh_metadata: of concurrent callers it sends only the first one's request.
            await self.cluster._do_refresh_metadata(node_id)
            if not self.cluster.brokers():
                raise Errors.KafkaConnectionError("it knows of no brokers")
        except Exception:
            if not self.connection_delay(node_id):
                self.update_backoff(node_id)
            raise
        finally:
            self._forget_address(node_id)
        self.reset_backoff(node_id)
        self.cluster.start_refresh_loop()

    def _forget_address(self, node_id: Any) -> None:
        connection = self._conns.pop(node_id, None)
        if connection is not None:
            connection.close()
