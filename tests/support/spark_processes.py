"""Spark as processes of their own: a standalone cluster, a YARN, and drivers that tests speak with line by line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any

import pyspark

from tolerant_client.testing.artifacts import cache_dir, java_executable, resolved_jars

PATIENCE = 120.0  # for a slow CI machine that starts five JVMs on two cores
_DRIVER = Path(__file__).with_name("spark_driver.py")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_MINI_YARN = Path(__file__).with_name("MiniYarn.java")
_HADOOP = "3.5.0"
# Hadoop's cluster for tests in one jar, and what it forgets to bring.
_YARN = (
    ("org.apache.hadoop", "hadoop-client-minicluster", _HADOOP),
    ("org.apache.hadoop", "hadoop-client-runtime", _HADOOP),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
    ("org.mockito", "mockito-core", "4.11.0"),
    ("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
    ("ch.qos.reload4j", "reload4j", "1.2.25"),
    ("org.bouncycastle", "bcprov-jdk18on", "1.78.1"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
)
_REGISTERED = re.compile(r"Successfully registered with master")


class Process:
    """A child whose lines are collected by a thread; the whole process group ends with it."""

    def __init__(
        self, command: list[str], log: Path, environment: dict[str, str], *, is_spoken_with: bool = False
    ) -> None:
        self._log = log
        self._lines: Queue[str] = Queue()
        self._seen: deque[str] = deque(maxlen=200)
        with log.open("wb") as file:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if is_spoken_with else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file if is_spoken_with else subprocess.STDOUT,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    def _collect(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._seen.append(line)
            self._lines.put(line)
        self._lines.put("")

    def line(self) -> str:
        """The next line; raises AssertionError with the last lines and the end of the log if none comes."""
        with contextlib.suppress(Empty):
            if line := self._lines.get(timeout=PATIENCE):
                return line
        raise AssertionError(f"{self.child.args!r} said nothing more:\n{self._told()}")

    def _told(self) -> str:
        return "".join([*self._seen.copy(), self._log.read_text(errors="replace")])[-6000:]

    def wait_for(self, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := pattern.search(self.line()):
                return found[found.re.groups]
        raise AssertionError(f"no {pattern.pattern!r} in:\n{self._told()}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self._reader.join()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Driver(Process):
    """spark_driver.py: `step` is what it tells, `go` lets it do the next one."""

    def __init__(self, *arguments: str, folder: Path, environment: dict[str, str] | None = None) -> None:
        python = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        # Spark finds data sources by listing folders: an editable installation has none that it could list.
        found = importlib.util.find_spec("pyspark_tolerantkafka")
        assert found is not None and found.origin is not None
        python["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(Path(found.origin).parent), os.environ.get("PYTHONPATH")))
        )
        command = [sys.executable, str(_DRIVER), *arguments, str(folder)]
        super().__init__(command, folder / "driver.log", {**python, **(environment or {})}, is_spoken_with=True)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.line())
        assert told["step"] == name, told
        return told

    def go(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("go\n")
        self.child.stdin.flush()


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int, settings: Path | None = None) -> Iterator[str]:
    """A master and workers of one core each, with the properties file `settings`; the value is the master's address.

    Each worker has a host of its own: Spark speculates on other hosts alone.
    """
    home = Path(pyspark.__file__).parent
    (core,) = home.glob("jars/spark-core_*.jar")
    scala = core.name.removeprefix("spark-core_").partition("-")[0]  # what Spark's own scripts find out for workers
    environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": scala}
    java = [java_executable(), "-Xmx256m", "-cp", f"{home}/jars/*"]

    given = [] if settings is None else ["--properties-file", str(settings)]

    def start(name: str, *arguments: str) -> Process:
        return Process(
            [*java, f"org.apache.spark.deploy.{name}", *given, *arguments, "--webui-port", "0"],
            folder / f"{name}.log",
            environment,
        )

    with contextlib.ExitStack() as running:
        master = start("master.Master", "--host", "127.0.0.1", "--port", "0")
        running.callback(master.close)
        address = master.wait_for(_MASTER)
        for number in range(workers):
            place = ("--work-dir", str(folder / f"worker-{number}"), "--host", f"127.0.0.{number + 1}")
            worker = start("worker.Worker", "--cores", "1", "--memory", "512m", *place, address)
            running.callback(worker.close)
            worker.wait_for(_REGISTERED)
        yield address


@contextlib.contextmanager
def yarn_cluster(folder: Path) -> Iterator[Path]:
    """A resource manager and two node managers of two cores each; the value is what HADOOP_CONF_DIR is to be."""
    jars = resolved_jars(cache_dir() / f"hadoop-{_HADOOP}" / "minicluster", _YARN, f"Hadoop {_HADOOP}")
    conf = folder / "conf"
    conf.mkdir()
    path = os.pathsep.join(map(str, jars))
    command = [java_executable(), "-Xmx512m", f"-Duser.dir={folder}", "-cp", path, str(_MINI_YARN), str(conf)]
    yarn = Process(command, folder / "yarn.log", {})
    try:
        yarn.wait_for(re.compile("MiniYarn is up"))
        yield conf
    finally:
        yarn.close()
