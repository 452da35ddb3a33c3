"""install() and `python -m tolerant_client`: the stock classes in a process whose code does not change."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import kafka.consumer.group
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager

import tolerant_client
from support.fake_broker import FakeBroker, serve
from tolerant_client import RecoveryPolicy
from tolerant_client.errors import OptionError
from tolerant_client.stock import installation
from tolerant_client.stock.connection import TolerantConnection
from tolerant_client.stock.manager import TolerantConnectionManager
from tolerant_client.tracker.events import Event

REPLACED = [(owner, name) for owner, name, _ in installation._replacements()]


class OldStyleProducer(KafkaProducer):  # type: ignore[misc]
    """Subclasses and initializes as code from before super() does."""

    def __init__(self, **configs: Any) -> None:
        KafkaProducer.__init__(self, **configs)


class OwnManager(KafkaConnectionManager):  # type: ignore[misc]
    """A user's manager that overrides one method."""

    def least_loaded_node(self) -> Any:
        self.was_asked = True
        return super().least_loaded_node()


@pytest.fixture(autouse=True)
def stock_again() -> Iterator[None]:
    yield
    tolerant_client.uninstall()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    with serve(broker):
        yield broker


def address(broker: FakeBroker) -> str:
    return f"{broker.host}:{broker.port}"


def attributes() -> list[Any]:
    return [vars(owner).get(name, "absent") for owner, name in REPLACED]


def test_a_listener_that_cannot_be_called_installs_nothing() -> None:
    with pytest.raises(OptionError, match="recovery_listener is 5: give a function"):
        tolerant_client.install(recovery_listener=5)  # type: ignore[arg-type]
    assert not installation.is_installed()


def test_a_stock_producer_that_waits_for_a_standby_is_told_which_one_can() -> None:
    tolerant_client.install()
    with pytest.raises(OptionError, match=r'acks="mirrored" is an option of tolerant_client\.KafkaProducer'):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", acks="mirrored")


def test_uninstall_puts_every_attribute_back() -> None:
    before = attributes()
    tolerant_client.install()
    during = attributes()
    tolerant_client.uninstall()
    assert len(before) == len(during) > 0
    assert all(old is not new for old, new in zip(before, during))
    assert all(old is new for old, new in zip(before, attributes()))


def test_installing_and_uninstalling_twice_is_harmless(broker: FakeBroker) -> None:
    before = attributes()
    tolerant_client.install()
    tolerant_client.install()
    client = KafkaNetClient(bootstrap_servers=address(broker))
    assert type(client._manager) is TolerantConnectionManager
    client.close()
    tolerant_client.uninstall()
    tolerant_client.uninstall()
    assert all(old is new for old, new in zip(before, attributes()))
    client = KafkaNetClient(bootstrap_servers=address(broker))
    assert type(client._manager) is KafkaConnectionManager
    client.close()


def test_clients_imported_before_get_tolerant_connections(broker: FakeBroker) -> None:
    tolerant_client.install()
    for make in (KafkaProducer, OldStyleProducer):
        producer = make(bootstrap_servers=address(broker), enable_idempotence=False)
        manager = producer._sender._client._manager
        assert type(producer) is make
        assert isinstance(manager, TolerantConnectionManager)
        producer.close()
        assert manager.recovery_counters.of("completed") > 0
    admin = KafkaAdminClient(bootstrap_servers=address(broker))
    assert isinstance(admin._manager, TolerantConnectionManager)
    admin.close()
    consumer = KafkaConsumer(bootstrap_servers=address(broker))
    assert type(consumer) is kafka.KafkaConsumer
    assert isinstance(consumer._manager, TolerantConnectionManager)
    assert type(consumer._fetcher).__name__ == "TolerantFetcher"
    assert type(consumer._coordinator).__name__ == "TolerantCoordinator"
    assert consumer.poll_arrow(timeout_ms=0).num_rows == 0
    consumer.close()


@pytest.mark.parametrize("mode", ["drop-in", "installed"])
def test_a_producer_with_transactions_has_our_transaction_manager(broker: FakeBroker, mode: str) -> None:
    if mode == "installed":
        tolerant_client.install()
    kind = KafkaProducer if mode == "installed" else tolerant_client.KafkaProducer
    producer = kind(bootstrap_servers=address(broker), transactional_id="t", api_version=(2, 8))
    assert type(producer._transaction_manager).__name__ == "TolerantTransactionManager"
    producer.close()


def test_direct_users_of_the_manager_keep_their_own_methods(broker: FakeBroker) -> None:
    tolerant_client.install()
    client = KafkaNetClient(bootstrap_servers=address(broker))
    manager = OwnManager(client._net, bootstrap_servers=address(broker))
    assert isinstance(manager, OwnManager) and isinstance(manager, TolerantConnectionManager)
    manager.bootstrap(timeout_ms=20_000)
    manager.least_loaded_node()
    assert manager.was_asked
    assert isinstance(manager.get_connection(1), TolerantConnection)
    manager.close()
    client.close()


def test_the_options_of_the_last_install_hold_for_new_clients(broker: FakeBroker) -> None:
    events: list[Event] = []
    patient = RecoveryPolicy.patient()
    tolerant_client.install()
    first = KafkaNetClient(bootstrap_servers=address(broker))
    tolerant_client.install(recovery_policy=patient, recovery_listener=events.append)
    second = KafkaNetClient(bootstrap_servers=address(broker))
    assert first._manager.recovery_policy == RecoveryPolicy()
    assert second._manager.recovery_policy is patient
    for client in (first, second):
        client._manager.bootstrap(timeout_ms=20_000)
        client.close()
    heard = [event for event in events if event.kind == "completed"]
    assert len(heard) == second._manager.recovery_counters.of("completed") > 0


def test_a_client_stays_for_life_what_it_was_when_it_was_made(broker: FakeBroker) -> None:
    stock = KafkaNetClient(bootstrap_servers=address(broker))
    tolerant_client.install()
    ours = KafkaNetClient(bootstrap_servers=address(broker))
    assert type(stock._manager) is KafkaConnectionManager
    stock._manager.bootstrap(timeout_ms=20_000)
    tolerant_client.uninstall()
    ours._manager.bootstrap(timeout_ms=20_000)
    assert isinstance(ours._manager.get_connection(1), TolerantConnection)
    assert not isinstance(stock._manager.get_connection(1), TolerantConnection)
    stock.close()
    ours.close()


def test_counters_of_ended_clients_are_not_forgotten(broker: FakeBroker) -> None:
    before = installation.recovery_counters().of("completed")
    tolerant_client.install()
    counted = 0
    for _ in range(3):
        client = KafkaNetClient(bootstrap_servers=address(broker))
        client._manager.bootstrap(timeout_ms=20_000)
        counted += client._manager.recovery_counters.of("completed")
        client.close()
        del client
    gc.collect()
    assert counted > 0
    assert installation.recovery_counters().of("completed") == before + counted


def test_drop_ins_keep_their_own_options_while_installed(broker: FakeBroker) -> None:
    tolerant_client.install(recovery_policy=RecoveryPolicy.patient())
    strict = RecoveryPolicy.strict()
    producer = tolerant_client.KafkaProducer(
        bootstrap_servers=address(broker), enable_idempotence=False, recovery_policy=strict
    )
    manager = producer._sender._client._manager
    assert manager.recovery_policy == strict.for_retries(1)
    assert manager.recovery_counters is producer.recovery_counters
    producer.close()


# -- python -m tolerant_client --------------------------------------------------

SHOW = """\
import json, sys
from kafka.net.manager import KafkaConnectionManager
def annotated(argument: int): pass
print(json.dumps({
    "annotation": repr(annotated.__annotations__["argument"]),
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__file__,
    "installed": "tolerant" in KafkaConnectionManager.__init__.__code__.co_filename,
}))
"""


def run(*arguments: str, cwd: Path, tolerant: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-m", "tolerant_client"] if tolerant else []), *arguments]
    # The warnings of kafka-python's import are not the program's.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def shown(*arguments: str, cwd: Path, tolerant: bool = True) -> dict[str, Any]:
    done = run(*arguments, cwd=cwd, tolerant=tolerant)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "module.py").write_text(SHOW)
    (folder / "script.py").write_text(SHOW)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["programs/script.py"],
        ["programs/script.py", "--counters", "-m", "x y", "--policy", "none"],
        ["programs/script.py", "--", "-5", "--"],
        ["-m", "programs.package.module", "--counters", "-x"],
    ],
    ids=["script", "script with options", "script with dashes", "module"],
)
def test_the_program_sees_what_python_would_have_given_it(tmp_path: Path, program: Path, arguments: list[str]) -> None:
    ours = shown(*arguments, cwd=tmp_path)
    stock = shown(*arguments, cwd=tmp_path, tolerant=False)
    assert (ours.pop("installed"), stock.pop("installed")) == (True, False)
    assert ours == stock


@pytest.mark.parametrize(
    ("body", "code"),
    [("raise SystemExit(7)", 7), ("import sys; sys.exit('bad')", 1), ("1 / 0", 1), ("pass", 0)],
)
def test_exit_code_and_traceback_are_the_programs_own(tmp_path: Path, body: str, code: int) -> None:
    (tmp_path / "program.py").write_text(f"def work():\n    {body}\n\nwork()\n")
    ours, stock = (run("program.py", cwd=tmp_path, tolerant=tolerant) for tolerant in (True, False))
    assert ours.returncode == stock.returncode == code
    assert ours.stderr.replace(f"{tmp_path}{os.sep}", "") == stock.stderr.replace(f"{tmp_path}{os.sep}", "")


def test_a_program_that_does_not_exist_is_an_error_of_usage(tmp_path: Path) -> None:
    done = run("-m", "no.such.module", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.endswith("no module named 'no.such.module'\n")
    done = run("nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr


def test_an_unknown_policy_is_refused_by_name(tmp_path: Path, program: Path) -> None:
    done = run("--policy", "brave", "programs/script.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "'strict'" in done.stderr and "brave" in done.stderr


def test_policy_and_counters_reach_the_clients_of_the_program(tmp_path: Path, broker: FakeBroker) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from kafka.net.compat import KafkaNetClient\n"
        "client = KafkaNetClient(bootstrap_servers=sys.argv[1])\n"
        "client._manager.bootstrap(timeout_ms=60_000)\n"
        "print(client._manager.recovery_policy.max_resends)\n"
        "client.close()\n"
        "sys.exit(3)\n"
    )
    done = run("--policy", "patient", "--counters", "program.py", address(broker), cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.split() == [str(RecoveryPolicy.patient().max_resends)]
    rows = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("tolerant_client: ")]
    assert rows[0] == ["event", "api", "node", "count"]
    assert ["completed", "Metadata", "bootstrap-0", "1"] in rows


def test_a_forked_child_is_tolerant_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import multiprocessing\n"
        "def child():\n"
        "    from kafka.net.manager import KafkaConnectionManager\n"
        "    print('tolerant' in KafkaConnectionManager.__init__.__code__.co_filename)\n"
        "worker = multiprocessing.get_context('fork').Process(target=child)\n"
        "worker.start()\n"
        "worker.join()\n"
        "raise SystemExit(worker.exitcode)\n"
    )
    done = run("program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
