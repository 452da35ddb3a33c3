"""Asks Spark's block managers for blocks as a stranger does: Spark's own transport, spoken without a login.

A frame is its length in 8 bytes, itself included, a type and a message (MessageEncoder.java); the messages are those of
RpcRequest, RpcResponse, ChunkFetchRequest and ChunkFetchSuccess, with OpenBlocks and StreamHandle inside.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_CHUNK_REQUEST, _CHUNK, _RPC_REQUEST, _RPC_RESPONSE = 0, 1, 3, 4
_OPEN_BLOCKS, _STREAM_HANDLE = 0, 3
_PATIENCE_S = 2.0


def listening_ports(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(descriptor.readlink()))
        except OSError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def broadcast_blocks(port: int, numbers: Iterable[int]) -> dict[str, bytes]:
    """The broadcast blocks that whoever listens there gives to somebody who does not log in."""
    found = {}
    for name in (name for n in numbers for name in (f"broadcast_{n}", f"broadcast_{n}_piece0")):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as stream:
                if (block := _block(stream, name)) is not None:
                    found[name] = block
        except OSError:
            return found
    return found


def _block(stream: socket.socket, name: str) -> bytes | None:
    texts = [text.encode() for text in ("app", "exec", name)]
    app, executor, block = (struct.pack(">i", len(text)) + text for text in texts)
    asked = bytes([_OPEN_BLOCKS]) + app + executor + struct.pack(">i", 1) + block
    _send(stream, _RPC_REQUEST, struct.pack(">qi", 1, len(asked)) + asked)
    kind, body = _receive(stream)
    if kind != _RPC_RESPONSE or body[12] != _STREAM_HANDLE:
        return None
    (stream_id,) = struct.unpack_from(">q", body, 13)
    _send(stream, _CHUNK_REQUEST, struct.pack(">qi", stream_id, 0))
    kind, body = _receive(stream)
    return body[12:] if kind == _CHUNK else None


def _send(stream: socket.socket, kind: int, message: bytes) -> None:
    stream.sendall(struct.pack(">qb", 9 + len(message), kind) + message)


def _receive(stream: socket.socket) -> tuple[int, bytes]:
    length, kind = struct.unpack(">qb", _exactly(stream, 9))
    return kind, _exactly(stream, length - 9)


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = stream.recv(min(size - len(found), 1 << 20))
        if not piece:
            raise ConnectionError("closed")
        found += piece
    return found
