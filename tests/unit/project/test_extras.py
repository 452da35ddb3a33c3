"""What an installation brings: a base install what a client needs, each extra its own, and all pages and files."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from support.tree import ROOT

MODULES = {"prometheus-client": "prometheus_client"}  # where a package is imported by another name

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Blocked())
"""

CLIENTS = """
import importlib
import pkgutil
import tolerant_client

consumer = tolerant_client.KafkaConsumer(bootstrap_servers="127.0.0.1:1", api_version=(2, 6), group_id=None)
consumer.close()
producer = tolerant_client.KafkaProducer(bootstrap_servers="127.0.0.1:1", api_version=(2, 6))
producer.close()
tolerant_client.install()
tolerant_client.uninstall()
for module in pkgutil.walk_packages(tolerant_client.__path__, "tolerant_client."):
    # Of Prometheus, of pytest, of the command line, of stores of keys.
    others = ("tolerant_client.metrics", "tolerant_client.testing.plugin", "tolerant_client.ops", "tolerant_client.security")
    if not module.name.startswith(others):
        importlib.import_module(module.name)
"""


def requirements(extra: str | None = None) -> set[str]:
    """The names of the packages that setup.cfg asks for: in any case, or with an extra."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    text = parser["options"]["install_requires"] if extra is None else parser["options.extras_require"][extra]
    return set(re.findall(r"^[\w-]+", text, re.MULTILINE))


def blocked(*names: str) -> str:
    return BLOCKED.format(names={MODULES.get(name, name) for name in names})


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_clients_and_engine_need_no_package_of_an_extra() -> None:
    extras = (
        set().union(*(requirements(name) for name in ("cli", "spark", "kerberos", "msk", "testing"))) - requirements()
    )
    done = run(blocked(*extras - {"tolerant-client"}) + CLIENTS)
    assert done.returncode == 0, done.stderr


def test_the_command_line_needs_no_spark_to_start() -> None:
    done = run(
        blocked(*requirements("spark") - {"tolerant-client"}) + "from spark_integration.cli.entry import main; main()"
    )
    assert "Usage: " in done.stdout and "mirror" in done.stdout, done.stderr


# That is imported for stores of keys only.
@pytest.mark.parametrize("name", sorted(requirements("cli") - {"cryptography"}))
def test_without_its_extra_the_command_says_in_one_sentence_what_to_install(name: str) -> None:
    done = run(blocked(name) + "from spark_integration.cli.entry import main; main()")
    assert done.returncode == 2
    assert re.fullmatch(rf"tolerant-kafka: .*{MODULES.get(name, name)}.*pip install '\.\[cli\]'.*\n", done.stderr)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The files of the wheel and of the sdist, as they are built from what git has."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    subprocess.run(
        f"git ls-files -z | xargs -0 tar c | tar x -C '{tree}'", shell=True, cwd=ROOT, check=True, timeout=240
    )
    build = f"from setuptools import build_meta as b; b.build_wheel({str(out)!r}); b.build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, timeout=300, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {re.sub(r"^[^/]*\.data/data/share/doc/[^/]*/", "docs/", name) for name in packed.namelist()}
    with tarfile.open(sdist) as unpacked:
        return in_wheel, {name.partition("/")[2] for name in unpacked.getnames()}


def tracked(*patterns: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split())


def test_wheel_and_sdist_carry_guides_docs_deployment_files_and_every_module(
    archives: tuple[set[str], set[str]],
) -> None:
    wheel, sdist = archives
    wanted = tracked("spark_integration", "tolerant_client", "pyspark_tolerantkafka.py", "docs")
    assert wanted - wheel == set()
    assert (wanted | {"README.md", "CHANGELOG.md", "LICENSE"}) - sdist == set()


def test_importing_the_package_imports_no_client() -> None:
    done = run("import sys, tolerant_client; print([name for name in sys.modules if name.split('.')[0] == 'kafka'])")
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_the_mirror_imports_no_pandas() -> None:
    done = run(
        "import sys, spark_integration.cli.app, spark_integration.mirror.mirror_job; print('pandas' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr
