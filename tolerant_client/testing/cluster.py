"""A real Apache Kafka cluster for tests: KRaft, one or three nodes, removed completely at the end.

- A broker does not outlive the process that started it, however that process ends.
- Each broker has two client listeners: PLAINTEXT, which advertises its own port, and PROXIED, which advertises
  the port of a FaultProxy.
- A failure to start raises one ClusterStartError, which ends with the last lines of the broker's log.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tolerant_client.testing.artifacts import ClusterStartError, jars, java_executable
from tolerant_client.testing.class_archive import class_archive
from tolerant_client.testing.node import HOST, Node, free_ports, is_free, javaproperties, log_tail
from tolerant_client.testing.server_properties import GENERATED, server_properties

_OLDEST = (3, 3)
_STOP_TIMEOUT_S = 30.0
# In a process that lives for seconds, neither the optimizing compiler nor a parallel garbage collector pays off.
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_formats: dict[str, dict[str, bytes]] = {}  # version -> the files that its tool wrote: file name -> content
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# PR_SET_PDEATHSIG would end the brokers when the *thread* that started them ends, and needs code between fork
# and exec.  Instead a shell reads a pipe, and ends the brokers when the last process with the pipe's other end is
# gone, even after kill -9, on every POSIX system.  Each line is the whole list of processes to end.
_WATCHDOG = """
while read -r line; do pids=$line; done
[ -z "$pids" ] || { kill -9 $pids; sleep 1; } 2>/dev/null
[ -z "$1" ] || rm -rf -- "$1"
"""


class KafkaCluster:
    """Brokers of one Kafka version on 127.0.0.1, as a context manager.

    `nodes` is 1 or 3 (each is broker and controller, ids from 1).  `broker_config` overrides the settings for
    tests.  `heap` is the JVM's heap size per broker.  `java_options` None starts fast, with a class archive that the first
    start makes beside the cached jars; () leaves Java's defaults, for benchmarks.
    `work_dir` is kept, and the next cluster may use it again; without it a temporary folder is used and removed.
    `ports` are the PLAINTEXT ports, one per node; free ports by default.
    `listeners` are additional client listeners, name -> security protocol (names in capitals: {"TLS": "SSL"});
    `servers_of(name)` gives their addresses.  "PROXIED" among them sets that listener's protocol.  Other settings
    of a listener go into `broker_config` with Kafka's prefix: "listener.name.tls.ssl.keystore.location".
    Raises ClusterStartError from `start` and `restart`, ValueError for impossible arguments.
    """

    def __init__(
        self,
        version: str = "4.2.0",
        nodes: int = 1,
        broker_config: Mapping[str, str] | None = None,
        heap: str = "512m",
        work_dir: Path | None = None,
        *,
        ports: Sequence[int] = (),
        listeners: Mapping[str, str] | None = None,
        java_options: Sequence[str] | None = None,
        start_timeout: float = 90.0,
    ) -> None:
        if nodes not in (1, 3):
            raise ValueError(f"nodes is {nodes}: a cluster for tests has 1 or 3 nodes")
        if ports and len(ports) != nodes:
            raise ValueError(f"ports has {len(ports)} ports for {nodes} nodes: give one per node, or none")
        reserved = sorted(GENERATED & set(broker_config or ()))
        if reserved:
            raise ValueError(f"broker_config sets {', '.join(reserved)}, which KafkaCluster sets itself: remove it")
        self._protocols = {"PLAINTEXT": "PLAINTEXT", "PROXIED": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        for name, protocol in (listeners or {}).items():
            if not re.fullmatch("[A-Z][A-Z0-9_]*", name) or name in ("PLAINTEXT", "CONTROLLER"):
                raise ValueError(f"listeners has the name {name!r}: choose another name, in capital letters")
            if protocol not in _PROTOCOLS:
                known = ", ".join(_PROTOCOLS)
                raise ValueError(f"listeners gives {name} the protocol {protocol!r}: choose from {known}")
            self._protocols[name] = protocol
        self.version = version
        self.nodes = nodes
        self._broker_config = {key: str(value) for key, value in (broker_config or {}).items()}
        self._heap = heap
        self._java_options = java_options
        self._java_flags: list[str] = []
        self._given_ports = tuple(ports)
        self._given_work_dir = work_dir
        self._start_timeout = start_timeout
        self._nodes: dict[int, Node] = {}
        self._command: list[str] = []
        self._watchdog: subprocess.Popen[str] | None = None
        self._work_dir: Path | None = None
        self._owner = 0
        # Held while processes are started and ended, never while waiting for one to become ready.
        self._lock = threading.RLock()

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.bootstrap_servers if self._nodes else "not started"
        return f"<KafkaCluster {self.version} {state}>"

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.nodes + 1))

    @property
    def bootstrap_servers(self) -> str:
        """host:port,... of the PLAINTEXT listeners, stopped nodes included."""
        return ",".join(f"{HOST}:{node.port}" for node in self._started().values())

    def servers_of(self, listener: str) -> str:
        """host:port,... of the listener with this name; ValueError for an unknown one.

        The addresses of PROXIED bypass the proxy, but the addresses that the brokers advertise there lead to it.
        """
        ports = [node.port_of(listener) for node in self._started().values()]
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def proxied(self) -> Mapping[int, tuple[int, int]]:
        """node_id -> (port of the PROXIED listener, port that it advertises: the proxy's)."""
        return {node.node_id: (node.proxied_port, node.advertised_port) for node in self._started().values()}

    @property
    def work_dir(self) -> Path:
        """The folder with one folder per node: server.properties, broker.log, data."""
        self._started()
        assert self._work_dir is not None
        return self._work_dir

    def log_file(self, node_id: int) -> Path:
        """The broker's output on stdout and stderr since the cluster was started."""
        return self._node(node_id).log_file

    def pid(self, node_id: int) -> int | None:
        """The broker's process id, None if it does not run."""
        return self._node(node_id).pid

    def start(self) -> KafkaCluster:
        """Start all nodes and wait until each of them serves; a running cluster cannot be started again."""
        with self._lock:
            if self._nodes:
                raise ClusterStartError("This KafkaCluster is already running: create another one")
            self._check_version()
            javaproperties()  # before the jars are resolved, which may take a minute
            for port in self._given_ports:
                if not is_free(port):
                    raise ClusterStartError(
                        f"Port {port} is in use on {HOST}: stop the process that listens there or choose another port"
                    )
            java = java_executable()
            found = jars(self.version)
            self._command = [java, "-cp", os.pathsep.join(map(str, found))]
            options = self._fast_start(found[0].parent) if self._java_options is None else self._java_options
            self._java_flags = [f"-Xmx{self._heap}", *options]
            ours = self._given_work_dir is None
            self._work_dir = Path(tempfile.mkdtemp(prefix="tolerant-kafka-")) if ours else self._given_work_dir
            assert self._work_dir is not None
            self._owner = os.getpid()
            self._nodes = self._make_nodes(self._work_dir)
            atexit.register(self.close)
        try:
            with self._lock:
                self._watchdog = self._start_watchdog(str(self._work_dir) if ours else "")
                self._format()
                for node in self._nodes.values():
                    self._launch(node)
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every process and remove the temporary folder; later calls do nothing."""
        # A forked child runs its parent's exit handlers, but must not end the parent's brokers.
        if self._owner != os.getpid():
            return
        with self._lock:
            # Not a clean stop: tests end sooner, and Kafka recovers if the folder is used again.
            for node in self._nodes.values():
                node.send(signal.SIGKILL)
            for node in self._nodes.values():
                node.kill()
            self._nodes = {}
            if self._watchdog is not None:
                self._watchdog.kill()
                self._watchdog.wait()
                with contextlib.suppress(OSError):
                    assert self._watchdog.stdin is not None
                    self._watchdog.stdin.close()
                self._watchdog = None
            if self._given_work_dir is None and self._work_dir is not None:
                shutil.rmtree(self._work_dir, ignore_errors=True)
            self._work_dir = None
            atexit.unregister(self.close)

    def stop(self, node_id: int) -> None:
        """Stop a node cleanly: it first hands over its partitions, if there is a quorum."""
        with self._lock:
            node = self._node(node_id)
            self.resume(node_id)
            node.send(signal.SIGTERM)
            if not node.wait(_STOP_TIMEOUT_S):
                node.kill()
            self._tell_watchdog()

    def kill(self, node_id: int) -> None:
        """kill -9 a node.

        The others notice, and the node can come back, after broker.session.timeout.ms: 4 s, unless broker_config
        changes it.
        """
        with self._lock:
            self._node(node_id).kill()
            self._tell_watchdog()

    def restart(self, node_id: int, wait: bool = True) -> None:
        """Start a node again (stop it first, if it runs) on the same ports and data.

        With `wait` it returns when the node serves, which needs a majority of the controllers.
        """
        with self._lock:
            node = self._node(node_id)
            if node.is_running:
                self.stop(node_id)
            self._launch(node)
        if wait:
            self.wait_ready()

    def pause(self, node_id: int) -> None:
        """Freeze a node (SIGSTOP): its connections stay open and silent."""
        with self._lock:
            node = self._node(node_id)
            node.send(signal.SIGSTOP)
            node.is_paused = node.is_running

    def resume(self, node_id: int) -> None:
        """Resume a paused node (SIGCONT)."""
        with self._lock:
            node = self._node(node_id)
            node.send(signal.SIGCONT)
            node.is_paused = False

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every node that runs and is not paused serves and knows all the others.

        Raises ClusterStartError if a node ends meanwhile, or after `timeout` seconds (default: start_timeout).
        """
        timeout = self._start_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        with self._lock:
            nodes = self._started()
            waiting = {node_id: node for node_id, node in nodes.items() if node.is_running and not node.is_paused}
            for node in nodes.values():
                # These are the exit codes after stop() and kill(); any other code is an unexpected end.
                if node.exit_code() not in (None, 0, 143, -signal.SIGKILL, -signal.SIGTERM):
                    raise self._start_error(node, f"has ended with exit code {node.exit_code()}")
        expected = frozenset(waiting)
        while waiting:
            for node_id, node in list(waiting.items()):
                if not node.is_running:
                    raise self._start_error(node, f"has ended with exit code {node.exit_code()}")
                if expected <= node.brokers_seen(timeout=2.0):
                    del waiting[node_id]
                elif time.monotonic() > deadline:
                    raise self._start_error(node, f"does not serve after {timeout:.0f} s")
            if waiting:
                time.sleep(0.05)

    def _started(self) -> dict[int, Node]:
        if not self._nodes:
            raise ClusterStartError("This KafkaCluster is not running: call start() or use it in a with statement")
        return self._nodes

    def _node(self, node_id: int) -> Node:
        node = self._started().get(node_id)
        if node is None:
            raise ValueError(f"node_id is {node_id}: this cluster has {', '.join(map(str, self.node_ids))}")
        return node

    def _check_version(self) -> None:
        found = re.match(r"(\d+)\.(\d+)\.", self.version)
        if found is None:
            raise ClusterStartError(f"{self.version!r} is not a Kafka version: write it like 4.2.0")
        if (int(found.group(1)), int(found.group(2))) < _OLDEST:
            raise ClusterStartError(
                f"Kafka {self.version} cannot run without ZooKeeper, which KafkaCluster does not start: "
                "use 3.3.0 or newer"
            )

    def _fast_start(self, folder: Path) -> list[str]:
        def run(option: str) -> None:
            with KafkaCluster(self.version, java_options=(*_SHORT_LIVED, option)) as cluster:
                cluster.stop(1)

        archive = class_archive(folder, self._command[0], run)
        return [*_SHORT_LIVED, *([] if archive is None else [f"-XX:SharedArchiveFile={archive}"])]

    def _make_nodes(self, work_dir: Path) -> dict[int, Node]:
        more = [name for name in self._protocols if name not in ("PLAINTEXT", "PROXIED", "CONTROLLER")]
        each = 3 + len(more) + (0 if self._given_ports else 1)
        random_ports = iter(free_ports(each * self.nodes))
        given = iter(self._given_ports or [next(random_ports) for _ in self.node_ids])
        return {
            node_id: Node(
                node_id=node_id,
                folder=work_dir / f"node-{node_id}",
                port=next(given),
                proxied_port=next(random_ports),
                advertised_port=next(random_ports),
                controller_port=next(random_ports),
                more_ports={name: next(random_ports) for name in more},
            )
            for node_id in self.node_ids
        }

    def _format(self) -> None:
        """Write the configurations and format the new folders.

        Kafka's own tool formats the first folder of a version; since it starts a JVM each time, the other folders of
        the version get copies of its files with other ids of cluster, node and folder.
        """
        cluster_id = _new_id()
        for node in self._nodes.values():
            node.write_properties(server_properties(node, self._nodes, self._protocols, self._broker_config))
            if not node.is_formatted:
                if self.version not in _formats:
                    _formats[self.version] = self._format_by_tool(node, cluster_id)
                node.format(_formats[self.version], {"cluster.id": cluster_id, "directory.id": _new_id()})

    def _format_by_tool(self, node: Node, cluster_id: str) -> dict[str, bytes]:
        """Runs Kafka's tool; returns the files that it wrote into the node's data folder, by name."""
        tool = [self._command[0], *_SHORT_LIVED, *self._command[1:], "kafka.tools.StorageTool", "format"]
        log = node.folder / "format.log"
        if node.spawn([*tool, f"--cluster-id={cluster_id}", "-c", str(node.properties_file)], log).wait() != 0:
            raise ClusterStartError(f"Kafka cannot format the folder of node {node.node_id}:\n{log_tail(log)}")
        return {file.name: file.read_bytes() for file in node.data_dir.iterdir() if file.is_file()}

    def _launch(self, node: Node) -> None:
        flags = [
            *self._java_flags,
            "-Djava.awt.headless=true",
            "-XX:+ExitOnOutOfMemoryError",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        ]
        node.start([self._command[0], *flags, *self._command[1:], "kafka.Kafka", str(node.properties_file)])
        self._tell_watchdog()

    def _start_watchdog(self, folder: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "tolerant-kafka-watchdog", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _tell_watchdog(self) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            pids = [str(node.pid) for node in self._nodes.values() if node.pid is not None]
            with contextlib.suppress(BrokenPipeError):
                self._watchdog.stdin.write(" ".join(pids) + "\n")
                self._watchdog.stdin.flush()

    def _start_error(self, node: Node, what: str) -> ClusterStartError:
        return ClusterStartError(
            f"Node {node.node_id} of Kafka {self.version} {what}; its log ends with:\n{log_tail(node.log_file)}"
        )


def _new_id() -> str:
    """A random Kafka Uuid as text, without dashes: Kafka's tool would read a leading one as an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
