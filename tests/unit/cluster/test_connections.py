"""Connections of a cluster that are closed (connections.py)."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import kafka.errors as Errors
import pytest

from tolerant_client.cluster.cluster import Cluster


def test_what_a_closed_connection_has_not_delivered_is_gone() -> None:
    """As while a network is cut: the peer takes nothing, then everything that still comes."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        with Cluster({"bootstrap_servers": f"{host}:{port}"}, name="target") as cluster:
            sock = cluster.run(cluster.manager._connected_socket, SimpleNamespace(host=host, port=port), None)
        peer, _ = listener.accept()
    with peer:
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += sock.send(bytes(1 << 16))
        sock.close()
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while some := peer.recv(1 << 20):
                received += len(some)
    assert 0 < received < sent


def test_a_node_that_only_another_node_names_is_awaited_while_our_metadata_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster({"bootstrap_servers": "localhost:1"}, name="target") as cluster:
        monkeypatch.setattr(cluster, "connect", AsyncMock())
        asked = cluster.manager.cluster.request_update = Mock()
        with pytest.raises(Errors.NodeNotReadyError, match="node 2 is not among the nodes of the target"):
            cluster.run(cluster.send, object(), 2)
    assert asked.called
