"""One broker process of a cluster for tests: its ports, files, signals, and the live brokers that it reports.

A node belongs to one KafkaCluster, which serializes the calls and provides the configuration.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tolerant_client.testing.artifacts import ClusterStartError

HOST = "127.0.0.1"
_LOG_TAIL_LINES = 15
_LOG_ERRORS = 3
_META = "meta.properties"
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_handed_out: set[int] = set()


def is_free(port: int) -> bool:
    """Whether a listener could be opened on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


@functools.cache
def _reservations() -> int:
    """A file of this user whose byte N is locked by the process that has handed out port N; the lock ends with it."""
    path = Path(tempfile.gettempdir(), f"tolerant-client-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _reserve(port: int) -> bool:
    reservations = _reservations()
    try:
        fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # another process has it: EAGAIN or EACCES, as the system likes
        return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` free ports that no living process of this user has handed out; raises ClusterStartError if there are too few.

    A broker binds its port seconds after that: until then, and while it is stopped, the port looks free to others.
    The ports are below the range that the system uses for outgoing connections: a port found by binding to port 0 soon
    becomes somebody's client port, and a broker that restarts would find it in use.
    """
    end = 32768
    with contextlib.suppress(OSError, ValueError, IndexError):
        end = int(_EPHEMERAL_RANGE.read_text().split()[0])
    start = max(1024, min(15000, end - 10000))
    found: list[int] = []
    candidates = random.SystemRandom().sample(range(start, end), end - start) if end > start else []
    for port in candidates:
        if len(found) == count:
            break
        if port not in _handed_out and _reserve(port) and is_free(port):
            _handed_out.add(port)
            found.append(port)
    if len(found) < count:
        raise ClusterStartError(f"{count} free ports are needed between {start} and {end}: stop what listens there")
    return found


@dataclass
class Node:
    """One broker and controller; ports are on 127.0.0.1."""

    node_id: int
    folder: Path
    port: int
    proxied_port: int
    advertised_port: int
    controller_port: int
    more_ports: Mapping[str, int] = field(default_factory=dict)
    is_paused: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log_file(self) -> Path:
        return self.folder / "broker.log"

    @property
    def properties_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def port_of(self, listener: str) -> int:
        """The port of a client listener; ValueError for an unknown one."""
        ports = {"PLAINTEXT": self.port, "PROXIED": self.proxied_port, **self.more_ports}
        if listener not in ports:
            raise ValueError(f"Unknown listener {listener!r}: the cluster has {', '.join(ports)}")
        return ports[listener]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The broker's process id, None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def is_formatted(self) -> bool:
        return (self.data_dir / _META).exists()

    def write_properties(self, properties: Mapping[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.properties_file.touch(mode=0o600)  # it may contain passwords of listeners
        self.properties_file.write_bytes(_dumped(properties))

    def format(self, files: Mapping[str, bytes], ids: Mapping[str, str]) -> None:
        """Write the files of a formatted data folder, with this node's ids in place of those in `files`."""
        self.data_dir.mkdir(exist_ok=True)
        for name, content in files.items():
            (self.data_dir / name).write_bytes(content)
        meta = javaproperties().loads(files[_META])
        mine = {**ids, "node.id": str(self.node_id)}
        (self.data_dir / _META).write_bytes(_dumped({key: mine.get(key, value) for key, value in meta.items()}))

    def spawn(self, command: Sequence[str], log_file: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `command` in a session of its own, with its output appended to a file.

        Without a session of its own, Ctrl-C in the terminal would reach the brokers before the test that uses them.
        """
        with open(log_file or self.log_file, "ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self, command: Sequence[str]) -> None:
        self._process = self.spawn(command)
        self.is_paused = False

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the broker if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)

    def wait(self, timeout: float) -> bool:
        """Whether the process has ended within `timeout` seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process at once, paused or not, and wait until it is gone."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.is_paused = False

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def brokers_seen(self, timeout: float) -> frozenset[int]:
        """The node ids in this broker's Metadata response; empty if it does not respond within `timeout` seconds."""
        try:
            with socket.create_connection((HOST, self.port), timeout=timeout) as connection:
                connection.settimeout(timeout)
                connection.sendall(_METADATA_REQUEST)
                (size,) = struct.unpack(">i", _receive(connection, 4))
                return _brokers_of(_receive(connection, size))
        except (OSError, struct.error):
            return frozenset()


def javaproperties() -> ModuleType:
    """The package javaproperties, imported late: this module can then be imported without the extra `testing`."""
    try:
        import javaproperties
    except ImportError as error:
        raise ClusterStartError(
            "A cluster for tests needs the package javaproperties: in a checkout, pip install '.[testing]'"
        ) from error
    return javaproperties


def _dumped(properties: Mapping[str, str]) -> bytes:
    text: str = javaproperties().dumps(dict(properties), timestamp=False)
    return text.encode("latin-1")


def log_tail(file: Path) -> str:
    """The last lines of a log, after its first errors if those are further up: they say why a broker ended."""
    try:
        with open(file, errors="replace") as log:
            lines = list(log)
    except OSError as error:
        return f"({file}: {error.strerror})"
    told = [line for line in lines[:-_LOG_TAIL_LINES] if " ERROR " in line or "Exception: " in line][:_LOG_ERRORS]
    return "".join([*told, "[...]\n"] if told else []) + "".join(lines[-_LOG_TAIL_LINES:]).rstrip()


# Metadata v1 for no topic (an empty array; null would mean all topics): every broker from 0.10 to 4.x supports it,
# and its response names only brokers that the controller has unfenced.  Frame: length, api key 3, version 1,
# correlation id 7, null client id, empty array.
_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)


def _brokers_of(response: bytes) -> frozenset[int]:
    """Layout: correlation id, then an array of node id int32, host string, port int32, rack nullable string."""
    _, count = struct.unpack_from(">ii", response, 0)
    position = 8
    node_ids = set()
    for _ in range(count):
        node_id, host_length = struct.unpack_from(">ih", response, position)
        node_ids.add(node_id)
        position += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", response, position)
        position += 2 + max(rack_length, 0)
    return frozenset(node_ids)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return bytes(parts)
