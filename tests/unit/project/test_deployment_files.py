"""What deployment files, guides and docs say exists: options, commands, files, links, imports, keys of the example."""

from __future__ import annotations

import configparser
import doctest
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands import COMMANDS
from support.tree import ROOT
from tolerant_client.ops.mm2.flows import read_flows

PACKAGE = ROOT / "spark_integration"
DEPLOYMENT, GUIDES = PACKAGE / "deployment", PACKAGE / "guides"
UNIT = DEPLOYMENT / "tolerant-kafka-mirror.service"
MANIFESTS = sorted((DEPLOYMENT / "kubernetes").glob("*.yaml"))
ROOT = PACKAGE.parent
PAGES = sorted(GUIDES.glob("*.md"))
TEXTS = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/*.md"), *ROOT.glob("*/**/*.md")}
    - {ROOT / "CHANGELOG.md"}
)
TEXTS = [
    path
    for path in TEXTS
    if path.parts[len(ROOT.parts)] in ("README.md", "docs", "tests", "tolerant_client", "spark_integration")
]

# Fields of SparkApplication, v1beta2, as of the operator's commit 38082f3 (config/crd/bases): unknown ones the API server drops
# without a word.
SPARK_APPLICATION = {
    "spec": """
        arguments batchScheduler batchSchedulerOptions deps driver driverIngressOptions
        driverPodDisruptionBudget dynamicAllocation executor failureRetries hadoopConf hadoopConfigMap image
        imagePullPolicy imagePullSecrets mainApplicationFile mainClass memoryOverheadFactor mode monitoring
        nodeSelector proxyUser pythonVersion restartPolicy retryInterval sparkConf sparkConfigMap
        sparkUIOptions sparkVersion suspend timeToLiveSeconds type volumes
    """,
    "driver": """
        affinity annotations configMaps coreLimit coreRequest cores dnsConfig env envFrom envSecretKeyRefs
        envVars gpu hostAliases hostNetwork image initContainers javaOptions kubernetesMaster labels lifecycle
        memory memoryLimit memoryOverhead nodeSelector podName podSecurityContext ports priorityClassName
        schedulerName secrets securityContext serviceAccount serviceAnnotations serviceLabels
        shareProcessNamespace sidecars template terminationGracePeriodSeconds tolerations volumeMounts
    """,
    "executor": """
        affinity annotations configMaps coreLimit coreRequest cores deleteOnTermination dnsConfig env envFrom
        envSecretKeyRefs envVars gpu hostAliases hostNetwork image initContainers instances javaOptions labels
        lifecycle memory memoryLimit memoryOverhead nodeSelector podSecurityContext ports priorityClassName
        schedulerName secrets securityContext serviceAccount shareProcessNamespace sidecars template
        terminationGracePeriodSeconds tolerations volumeMounts
    """,
    "restartPolicy": "onFailureRetries onFailureRetryInterval onSubmissionFailureRetries onSubmissionFailureRetryInterval type",
}


def check(arguments: list[str]) -> None:
    """Parses a tolerant-kafka command line as the command does, without running it."""
    name, *rest = arguments
    assert name in COMMANDS, f"there is no command {name}"
    command = COMMANDS[name]
    options = {text: option for option in command.params for text in option.opts}
    places = sum(option.param_type_name == "argument" for option in command.params)
    at = 0
    while at < len(rest):
        if not rest[at].startswith("-"):
            places -= 1
            assert places >= 0, f"tolerant-kafka {name} takes no {rest[at]}"
            at += 1
            continue
        assert rest[at] in options, f"tolerant-kafka {name} has no option {rest[at]}"
        at += 1 if options[rest[at]].is_flag else 2
    assert at == len(rest), f"{rest[-1]} needs a value"


def command_lines(text: str) -> Iterator[list[str]]:
    """Every `tolerant-kafka ...` of a page: in blocks and in the text."""
    joined = text.replace("\\\n", " ")
    for block in re.findall(r"```sh\n(.*?)```", joined, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("tolerant-kafka "):
                yield shlex.split(line, comments=True)[1:]
    for inline in re.findall(r"`(tolerant-kafka [a-z-]+ [^`]*)`", re.sub(r"```.*?```", "", joined, flags=re.DOTALL)):
        words = re.sub(r"\[(-[^]]*)\]|\s+\.\.\.", r"\1", inline)  # what may be given, or left out
        yield shlex.split(re.sub(r"\s+", " ", words))[1:]


def having(pattern: str) -> list[Any]:
    """The pages that have something of that kind, for a test of each."""
    found = [page for page in TEXTS if re.search(pattern, page.read_text(), re.MULTILINE)]
    return [pytest.param(page, id=str(page.relative_to(ROOT).with_suffix(""))) for page in found]


@pytest.mark.parametrize("page", having(r"tolerant-kafka [a-z]"))
def test_every_command_of_a_page_can_be_parsed(page: Path) -> None:
    for arguments in command_lines(page.read_text()):
        check(list(itertools.takewhile(lambda word: word not in ("|", ">"), arguments)))


@pytest.mark.parametrize("page", having(r"\]\("))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not link.startswith("https://"):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", having(r"^>>> "))
def test_every_example_that_shows_its_result_has_that_result(page: Path) -> None:
    done = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert done.attempted and not done.failed


_PLACE = r"(?<=[` ])((?:tests|tolerant_client|spark_integration|docs)/[\w./-]*\w)(?=[` ])"


@pytest.mark.parametrize("page", having(_PLACE))
def test_every_file_and_folder_that_a_page_names_exists(page: Path) -> None:
    for name in re.findall(_PLACE, page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_example_is_a_file_of_one_flow_without_warnings() -> None:
    flows = read_flows(DEPLOYMENT / "mm2.properties")
    (flow,) = flows.flows
    assert str(flow) == "A->B"
    assert flow.tasks == 2
    assert flow.link_topics.takes("orders") and not flow.link_topics.takes("others")
    assert flow.sync_group_offsets_s == 10


def test_the_commented_lines_of_the_example_are_right_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B_PASSWORD", "secret")
    (tmp_path / "ca.pem").write_text("")
    text = re.sub(r"(?m)^#(?=[\w>.-]+ = )", "", (DEPLOYMENT / "mm2.properties").read_text())
    file = tmp_path / "mm2.properties"
    file.write_text(text.replace("/etc/tolerant-kafka/b-ca.pem", str(tmp_path / "ca.pem")))
    (flow,) = read_flows(file).flows
    assert 'password="secret"' in flow.target["sasl.jaas.config"]


def test_properties_of_the_security_guide_are_known_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("A_KEY_PASSWORD", "A_PASSWORD", "A_SECRET"):
        monkeypatch.setenv(name, "secret")
    blocks = re.findall(r"```properties\n(.*?)```", (GUIDES / "security.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    base = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
    providers = (
        "config.providers = env\n"
        "config.providers.env.class = org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    )
    for number, block in enumerate(blocks[:4]):
        file = tmp_path / f"{number}.properties"
        file.write_text(base + providers + re.sub("/etc/tolerant-kafka/", f"{tmp_path}/", block))
        for name in ("a-ca.pem", "mirror.pem", "mirror.keytab"):
            (tmp_path / name).write_text("")
        assert read_flows(file).flows


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_yaml_and_its_arguments_are_those_of_the_command(manifest: Path) -> None:
    documents = list(yaml.safe_load_all(manifest.read_text()))
    kinds = {document["kind"]: document for document in documents}
    if "Deployment" in kinds:
        (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
        check(container["args"])
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert f":{ports['metrics']}" in container["args"][-1]
        assert {probe["httpGet"]["path"] for probe in (container["livenessProbe"], container["startupProbe"])} == {
            "/healthz"
        }
        selector = kinds["Service"]["spec"]["selector"].items()
        assert selector <= kinds["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
        assert kinds["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 10
    else:
        spec = kinds["SparkApplication"]["spec"]
        check(spec["arguments"])
        assert spec["mainApplicationFile"].endswith("/submit.py")
        for name, fields in SPARK_APPLICATION.items():
            given = spec if name == "spec" else spec[name]
            assert given.keys() <= set(fields.split()), f"{name} of the Spark operator has other fields"


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.operator"])
def test_a_container_file_copies_what_is_there_and_runs_a_command_that_exists(name: str) -> None:
    text = (DEPLOYMENT / name).read_text()
    assert "FROM " in text
    for copied in re.findall(r"/src/(spark_integration\S+)", text):
        assert (PACKAGE.parent / copied).exists()
    for line in re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE):
        check(yaml.safe_load(line))


def test_the_unit_runs_a_command_that_exists_and_stops_only_the_mirror() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/tolerant-kafka")
    check(arguments)
    assert service["KillMode"] == "mixed"  # the JVM must outlive the signal
    assert int(service["TimeoutStopSec"]) > 10
    assert service["Restart"] == "on-failure"


def test_the_units_user_reads_nothing_but_what_systemd_hands_it() -> None:
    """DynamicUser is nobody that /etc/tolerant-kafka, with its secrets, could be readable for."""
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    service = [line.partition("=")[::2] for line in lines if "=" in line]
    assert ("DynamicUser", "yes") in service
    handed = dict(value.split(":", 1) for name, value in service if name == "LoadCredential")
    (command,) = [value for name, value in service if name == "ExecStart"]
    assert re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", command) == list(handed) == ["mm2.properties"]
    read_by_it = [value for name, value in service if name not in ("LoadCredential", "EnvironmentFile")]
    assert not any("/etc/tolerant-kafka" in value for value in read_by_it)


def test_files_that_systemd_hands_over_are_named_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("B_KEY_PASSWORD", "secret")
    (tmp_path / "mirror.pem").write_text("")
    (block,) = re.findall(r"```properties\n(.*?)```", (GUIDES / "running.md").read_text(), re.DOTALL)
    base = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n"
    file = tmp_path / "mm2.properties"
    file.write_text(f"{base}{block}B.security.protocol = SSL\nB.ssl.keystore.type = PEM\n")
    file.chmod(0o400)
    (flow,) = read_flows(file).flows
    assert flow.target["ssl.keystore.location"] == f"{tmp_path}/mirror.pem"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tolerant-kafka/bin/tolerant-kafka", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr


def test_the_main_file_of_spark_submit_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, str(DEPLOYMENT / "submit.py"), "mirror", "--help"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "--gap-fill" in done.stdout


def test_one_version_is_written_everywhere() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    version = setup["metadata"]["version"]
    newest = re.search(r"^## \[(\S+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    named = re.search(r"^Version (\S+) runs", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert newest and named and (newest[1], named[1]) == (version, version)
    places = [*DEPLOYMENT.glob("Containerfile*"), *MANIFESTS, *PAGES]
    images = [tag for path in places for tag in re.findall(r"tolerant-kafka(?:-spark)?:(\d\S*)", path.read_text())]
    assert len(images) == 6 and set(images) == {version}
