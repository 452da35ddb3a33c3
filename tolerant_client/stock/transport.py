"""kafka-python's transports with large reads into their final buffers and gathered writes.

Laws:
- Bytes are received where the frame assembler wants them, and never joined.
- Frames that arrived before an error are delivered before the error.
- One connection must not keep the event loop to itself: a turn ends after
  `_TURN_BYTES`.
- Buffers given to `writelines` are sent without being copied.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import kafka.errors as Errors

from tolerant_client.errors import SslAuthenticationError
from tolerant_client.stock.stock_names import KafkaSSLTransport, KafkaTCPTransport
from tolerant_client.tracker.framing import FrameAssembler

log = logging.getLogger(__name__)

_TURN_BYTES = 4 << 20
_WAKE_BYTES = 1 << 20
_LOW_WATER_SINCE = (4, 18)  # Linux: older kernels never reach a mark above what the receive buffer holds
_MAX_BUFFERS = 512  # of one sendmsg; Linux and macOS allow 1024 (IOV_MAX)
# OpenSSL's reasons where one side refuses the other's certificate, name, version or cipher, as in CERTIFICATE_VERIFY_FAILED and
# TLSV1_ALERT_UNKNOWN_CA.  Others are of a handshake that was cut or spoiled, or of a listener without TLS.
_TLS_REFUSAL = re.compile(
    "CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|UNRECOGNIZED_NAME|HANDSHAKE_FAILURE|INSUFFICIENT_SECURITY|PROTOCOL|CIPHER"
)
_AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def heeds_low_water(platform: str, release: str) -> bool:
    """Whether poll() sleeps until SO_RCVLOWAT bytes are there, and receive buffers grow to it (tcp(7), socket(7))."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return platform == "linux" and numbers is not None and tuple(map(int, numbers.groups())) >= _LOW_WATER_SINCE


_HAS_LOW_WATER = heeds_low_water(sys.platform, os.uname().release if hasattr(os, "uname") else "")


def connection_error(error: Exception, doing: str) -> Errors.KafkaConnectionError:
    """What to raise where a socket's error ends a connection: SslAuthenticationError if that is a refusal of TLS.

    With TLS 1.3 a broker refuses our certificate only after the handshake, in its first response.
    """
    is_refusal = isinstance(error, ssl.SSLError) and _TLS_REFUSAL.search(error.reason or "")
    told = (SslAuthenticationError if is_refusal else Errors.KafkaConnectionError)(f"{doing} failed: {error}")
    told.__cause__ = error
    return told


class QuietSocket(socket.socket):
    """A socket whose repr makes no system call.

    selectors formats the socket into a KeyError that kafka-python's event loop
    provokes on every wait.  socket.socket's repr costs two system calls, and each
    of them may lose the interpreter lock to a busy thread for 5 ms.
    """

    @classmethod
    def taking_over(cls, sock: socket.socket) -> QuietSocket:
        """The same connection in a non-blocking socket of this class; the old object is unusable afterwards."""
        family, kind, proto = sock.family, sock.type, sock.proto
        quiet = cls(family, kind, proto, fileno=sock.detach())
        quiet.setblocking(False)
        return quiet

    def __repr__(self) -> str:
        return f"<{type(self).__name__} fd={self.fileno()}>"


class TolerantTCPTransport(KafkaTCPTransport):  # type: ignore[misc]  # kafka-python is untyped
    """A plain socket; `assembler` is set by the connection before reading starts."""

    assembler: FrameAssembler
    sent_bytes = 0  # taken by the kernel
    _is_short_read_empty = True  # a read that does not fill its buffer has emptied the socket
    _low_water = 1
    guards: Sequence[Callable[[], bool]] = ()

    async def handshake(self, timeout_at: float | None = None) -> None:
        """Does nothing: plaintext needs no handshake."""

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            self._sleep_through(min(self.assembler.missing, _WAKE_BYTES))
            await self._net.wait_read(self._sock)
            while self._read and not self._closed and self._take_turn():
                await self._net.sleep(0)  # more is waiting, where select() may not see it

    def _sleep_through(self, size: int) -> None:
        """Asks the kernel to wake us for `size` bytes at once, so that a large frame is read in few turns."""
        if size != self._low_water and _HAS_LOW_WATER:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._low_water = size

    def _take_turn(self) -> bool:
        """Receives what is there; True when the turn ended before the socket was empty."""
        taken = 0
        while not self._closed:
            room = self.assembler.writable()
            try:
                size = self._sock.recv_into(room)
            except _AGAIN:
                return False
            except Exception as error:
                log.debug("%s: receiving failed: %s", self, error)  # whoever waits for a response gets this error
                self.abort(connection_error(error, "receiving"))
                return False
            if size == 0:
                if taken:
                    return True  # a last response, such as why a login failed, is handled before the end
                self.abort(Errors.KafkaConnectionError("the broker closed the connection"))
                return False
            taken += size
            self._received(size)
            if self._is_short_read_empty and size < len(room):
                return False
            if taken >= _TURN_BYTES:
                return not self._closed
        return False

    def _received(self, size: int) -> None:
        self.last_read = time.monotonic()
        protocol = self._protocol
        if protocol is None:
            return
        if protocol._sensors:
            protocol._sensors.bytes_received.record(size)
        frames = self.assembler.received(size)
        protocol.bytes_received(self.last_read)
        if frames or self.assembler.error is not None:
            try:
                protocol.frames_received(frames, self.last_read)
            except Exception as error:
                # A caller's callback failed: its connection ends, not the event loop.
                log.exception("%s: handling a response failed", self)
                self.abort(Errors.KafkaConnectionError(f"handling a response failed: {type(error).__name__}"))

    def writelines(self, list_of_data: Any) -> None:
        """Writes buffers without joining them; a closing transport only flushes what it has."""
        buffers = [data for data in list_of_data if len(data)]
        if buffers and not self._closed:
            self.write(buffers[0])
            self._write_buffer.extend(buffers[1:])

    def abort(self, error: Exception | None = None) -> None:
        """Closes at once, even a transport that is already closing and whose last bytes nobody reads."""
        if self._closed and self._sock is not None:
            self._write_buffer.clear()
            self._close(error)
        else:
            super().abort(error)

    async def _write_to_sock(self) -> None:
        try:
            while self._write_buffer:
                sent, error = self._sock_send()
                if error:
                    self.abort(error=error)
                    return
                if sent:
                    self.last_write = time.monotonic()
                    if self._protocol and self._protocol._sensors:
                        self._protocol._sensors.bytes_sent.record(sent)
                if self._write_buffer:
                    await self._net.wait_write(self._sock)
        except GeneratorExit:  # the event loop is closed, so nobody sends the rest, nor closes the socket after it
            self._write_task = None
            self.abort(Errors.KafkaConnectionError("the event loop ended"))
            raise
        finally:
            self._writing = False
        if self._closed:
            self._close()
        elif not self._write:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def _sock_send(self) -> tuple[int, Exception | None]:
        """Sends as many buffers as the socket takes; returns (bytes sent, error or None)."""
        if self._sock is None:
            return 0, Errors.KafkaConnectionError("connection closed while sending")
        waiting = self._write_buffer
        if waiting and not all(may_send() for may_send in self.guards):
            return 0, Errors.KafkaConnectionError("what waited to be sent may not be sent any more")
        total = 0
        while waiting:
            try:
                sent = self._send_some(waiting)
            except _AGAIN:
                break
            except Exception as error:
                log.warning("%s: sending failed: %s", self, type(error).__name__)
                return total, connection_error(error, "sending")
            total += sent
            self.sent_bytes += sent
            while sent:
                first = waiting.popleft()
                if sent < len(first):
                    waiting.appendleft(memoryview(first)[sent:])
                    break
                sent -= len(first)
        return total, None

    def _send_some(self, waiting: Any) -> int:
        sent: int = self._sock.sendmsg(itertools.islice(waiting, _MAX_BUFFERS))
        return sent


class TolerantSSLTransport(TolerantTCPTransport, KafkaSSLTransport):  # type: ignore[misc]
    """A TLS socket: OpenSSL sends one buffer at a time and hides what it has read ahead."""

    _is_short_read_empty = False

    def _sleep_through(self, size: int) -> None:
        """Does nothing: part of what is missing may already be inside OpenSSL, and would not wake us."""

    async def handshake(self, timeout_at: float | None = None) -> None:
        """Agrees on TLS; raises KafkaTimeoutError at `timeout_at`: a listener without TLS may just wait for more."""
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)

    def _send_some(self, waiting: Any) -> int:
        try:
            sent: int = self._sock.send(waiting[0])
        except _AGAIN:
            raise
        except OSError:
            with contextlib.suppress(*_AGAIN):
                self._sock.recv(1)  # raises what the broker said before it closed: why it refuses our certificate
            raise
        return sent
