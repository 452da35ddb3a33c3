"""transport.py: which kernels are asked to sleep until more bytes are there, and what closes a socket."""

from __future__ import annotations

import socket
import ssl

import pytest
from kafka.net.selector import NetworkSelector

from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.stock.transport import QuietSocket, TolerantTCPTransport, heeds_low_water


@pytest.mark.parametrize(
    ("platform", "release", "heeds"),
    [
        ("linux", "3.10.0-1160.el7.x86_64", False),  # caps nothing, grows nothing: a large frame would stall
        ("linux", "4.17.19", False),
        ("linux", "4.18.0-553.el8", True),
        ("linux", "6.8.0-31-generic", True),
        ("linux", "unknown", False),
        ("darwin", "23.1.0", False),
    ],
)
def test_a_low_water_mark_is_set_only_where_buffers_grow_to_it(platform: str, release: str, heeds: bool) -> None:
    assert heeds_low_water(platform, release) is heeds


@pytest.mark.parametrize("is_closing", [True, False])
def test_an_event_loop_that_is_closed_leaves_no_socket_to_the_garbage_collector(is_closing: bool) -> None:
    """The far end reads nothing, so that not everything is sent when the loop ends."""
    near, far = socket.socketpair()
    net = NetworkSelector()
    sock = QuietSocket.taking_over(near)
    transport = TolerantTCPTransport(net, sock)
    with far:
        transport.write(bytes(8 << 20))
        net.poll(timeout_ms=0)
        assert transport.sent_bytes < 8 << 20
        if is_closing:
            transport.close()
        net.close()
        assert sock.fileno() == -1


def test_a_tls_handshake_that_is_cancelled_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The far end accepts, and says nothing."""
    wrapped: list[ssl.SSLSocket] = []
    wrap = ssl.SSLContext.wrap_socket

    def kept(*args: object, **kwargs: object) -> ssl.SSLSocket:
        wrapped.append(wrap(*args, **kwargs))  # type: ignore[arg-type]
        return wrapped[-1]

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", kept)
    with socket.create_server(("127.0.0.1", 0)) as server:
        net = NetworkSelector()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        manager = TolerantConnectionManager(net, bootstrap_servers=address, security_protocol="SSL")
        manager.bootstrap_async()
        while not wrapped:
            net.poll(timeout_ms=10)
        net.poll(timeout_ms=10)
        manager.close()
        net.close()
        assert wrapped[0].fileno() == -1
