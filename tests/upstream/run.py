"""Runs kafka-python's own tests twice, stock and with tolerant_client.install(), and compares.

    python tests/upstream/run.py [--work-dir DIR] [--tests CHECKOUT] [--no-broker] [pytest arguments]

The tests are those in the sdist of the installed version.  It leaves some of
their support files out: what needs those cannot run, with or without us.  The
integration tests are pointed at one real broker (KAFKA_URI), so those that
start brokers of their own to choose their settings are left out.

Exit code 0: every test that passes stock passes installed, but for the
explained ones, which do not.  1: one that passes stock does not, an explained
one passes again, or so many cannot run that little was compared.  One that
seems to differ is run 100 times each way: it differs unless it fails stock, too,
and at least half as often.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tolerant_client.testing.cluster import KafkaCluster

HERE = Path(__file__).parent
BROKER_VERSION = "4.2.0"
REPEATS = 100  # of a test that seems to differ
# The share of tests that may end in an error, or not be collected, stock and installed alike; of the sdist's it is a fifth.
MOST_UNABLE = 0.25

# Tests that look into what install() replaces by design, with the reason.  One that passes again is an error.
EXPLAINED = {
    "test/net/test_manager.py::TestKafkaConnectionManagerProxyConfig::test_build_transport_passes_proxy_url": (
        "it replaces kafka.net.manager.create_connection; ours connects by itself, to close sockets that are refused"
    ),
    **{
        f"test/producer/test_sender.py::test_{name}_negotiates_wire_version[{broker}]": (
            "its response leaves the partition out; kafka-python's producer would wait for that batch for ever, so it is"
            " handed up as outcome unknown"
        )
        for name in ("create_produce_requests", "produce_request")
        for broker in ("broker0-7", "broker1-2", "broker2-1", "broker3-0")
    },
    "test/test_cluster.py::TestClusterMetadataRefresh::test_bootstrap_triggers_refresh_loop": (
        "it counts calls of refresh_metadata(); ours asks each address beside the others, which that method does not"
    ),
    "test/integration/test_consumer_integration.py::test_kafka_consumer_unsupported_encoding": (
        "it takes kafka.codec's gzip away; ours does not use it"
    ),
}

# Not in the sdist, and needed only to say that the broker runs already.
SERVICE_STAND_IN = '''\
"""Stands in for the module that the sdist leaves out: brokers run already, none is started."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("this run has a broker already and starts none")
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, help="kept; a temporary folder otherwise")
    parser.add_argument("--tests", type=Path, help="a folder with a checkout's test folder, instead of the sdist")
    parser.add_argument("--no-broker", action="store_true", help="leave the integration tests out")
    options, pytest_arguments = parser.parse_known_args()
    with contextlib.ExitStack() as stack:
        work_dir = options.work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upstream-")))
        work_dir.mkdir(parents=True, exist_ok=True)
        folder = options.tests or unpacked_sdist(work_dir)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[1])))}
        if options.no_broker:
            pytest_arguments.append("--ignore=test/integration")
        else:
            environment |= stack.enter_context(running_broker(work_dir))
        stock = outcomes(folder, work_dir / "stock.json", environment, pytest_arguments)
        ours = outcomes(folder, work_dir / "installed.json", {**environment, "UPSTREAM_INSTALL": "1"}, pytest_arguments)
        for test in [test for test in differing(stock, ours) if test not in EXPLAINED]:
            often, alone = {**environment, "UPSTREAM_REPEATS": str(REPEATS)}, [test.partition("[")[0]]
            fails_stock = failures(test, outcomes(folder, work_dir / "stock-again.json", often, alone))
            fails_ours = failures(
                test, outcomes(folder, work_dir / "installed-again.json", {**often, "UPSTREAM_INSTALL": "1"}, alone)
            )
            print(f"again      {test}: {fails_stock} of {REPEATS} fail stock, {fails_ours} installed")
            if fails_ours <= 2 * fails_stock:
                ours[test] = "passed"
    return report(stock, ours)


def differing(stock: dict[str, str], ours: dict[str, str]) -> list[str]:
    """The tests that pass stock alone."""
    return sorted(test for test, ended in stock.items() if ended == "passed" and ours.get(test) != "passed")


def failures(test: str, ended: dict[str, str]) -> int:
    """How many repeats of a test did not pass; one that was not run failed."""
    name, _, parameters = test.partition("[")
    names = [f"{name}[{number}-{parameters}" if parameters else f"{name}[{number}]" for number in range(REPEATS)]
    return sum(ended.get(name) != "passed" for name in names)


def unpacked_sdist(work_dir: Path) -> Path:
    """The test folder of the installed version's sdist, without its kafka folder, which is not the one installed."""
    version = importlib.metadata.version("kafka-python")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "kafka-python"]
    subprocess.run([*pip, "--dest", str(work_dir), f"kafka-python=={version}"], check=True)
    folder = work_dir / f"kafka_python-{version}"
    with tarfile.open(work_dir / f"kafka_python-{version}.tar.gz") as archive:
        wanted = [member for member in archive if member.name.startswith((f"{folder.name}/test/", f"{folder.name}/py"))]
        archive.extractall(work_dir, wanted, filter="data")
    # Without it `test` would be the folder of that name in Python's own library.
    (folder / "test" / "__init__.py").touch()
    service = folder / "test" / "service.py"
    if not service.exists():
        service.write_text(SERVICE_STAND_IN)
    return folder


@contextlib.contextmanager
def running_broker(work_dir: Path) -> Iterator[dict[str, str]]:
    """What the integration tests want to know about a broker that runs."""
    settings = {
        "auto.create.topics.enable": "true",
        "num.partitions": "4",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaCluster(BROKER_VERSION, broker_config=settings) as cluster:
        address = f"kafka://{cluster.bootstrap_servers}"
        yield {"KAFKA_VERSION": BROKER_VERSION, "KAFKA_URI": address, "KAFKA_ROOT": str(work_dir)}


def outcomes(folder: Path, path: Path, environment: dict[str, str], arguments: list[str]) -> dict[str, str]:
    """How each test ended; their output is in a file beside `path`."""
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes", "-p", "no:tolerant_kafka"]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--timeout=120", *arguments]
    log = path.with_suffix(".log")
    with log.open("w") as out:
        code = subprocess.call(
            command, cwd=folder, env={**environment, "UPSTREAM_OUTCOMES": str(path)}, stdout=out, stderr=out
        )
    if not path.exists():
        raise SystemExit(f"pytest ended with {code} before it was done; its output ends:\n{log.read_text()[-4000:]}")
    ended: dict[str, str] = json.loads(path.read_text())
    return ended


def report(stock: dict[str, str], ours: dict[str, str]) -> int:
    """Prints the table and every difference; the exit code."""
    kinds = ("passed", "failed", "error", "skipped", "not collected")
    print(f"kafka-python {importlib.metadata.version('kafka-python')}, its own tests")
    print(f"{'':12}" + "".join(f"{kind:>15}" for kind in kinds))
    for name, ended in (("stock", stock), ("installed", ours)):
        counts = Counter(ended.values())
        print(f"{name:12}" + "".join(f"{counts[kind]:>15}" for kind in kinds))
    if "passed" not in stock.values():
        print("FAILED: not one test passes stock: nothing was compared")
        return 1
    wrong = []
    unable = [test for test, ended in stock.items() if ended in ("error", "not collected")]
    if len(unable) > MOST_UNABLE * len(stock):
        wrong.append(
            f"{len(unable)} of {len(stock)} tests cannot run stock: too few were compared; use --tests CHECKOUT"
        )
    for test in differing(stock, ours):
        if test in EXPLAINED:
            print(f"explained  {test}: {EXPLAINED[test]}")
        else:
            wrong.append(f"{test}: passed stock, {ours.get(test)} installed")
    wrong += [
        f"{test} passes again: take it out of EXPLAINED"
        for test in EXPLAINED
        if stock.get(test) == ours.get(test) == "passed"
    ]
    for line in wrong:
        print(f"FAILED: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
