"""Finds Java and the jars of Apache Kafka; resolves the jars once per user and caches them.

- A cached set of jars is complete or absent: it is resolved in a temporary folder and then renamed.
- A jar whose SHA-256 sum differs from that in jar-sums.txt is refused, wherever it comes from, the cache included.
  A set listed in jar-sums.txt is refused too if it has extra or missing jars; if Maven and Ivy resolve different
  sets, jar-sums.txt lists both.  For jars of other sets without a sum there, a warning is logged.
- Maven's or Ivy's own settings choose the repository, never this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tolerant_client.errors import TolerantClientError

_log = logging.getLogger(__name__)

BROKER_MODULES = ("kafka_2.13",)
TOOLS_MODULES = ("kafka_2.13", "kafka-tools", "connect-runtime", "connect-mirror")
MIN_JAVA = 17

# Spark's own Kafka source and those of its dependencies that pyspark lacks, in versions that work together on
# Spark 4.2 and 4.3; transitive dependencies are not resolved.
SPARK_KAFKA = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)

# Kafka's jars include slf4j-api 1.7 but no binding; without one a broker that fails logs nothing.
_SLF4J_BINDING = ("org.slf4j", "slf4j-simple", "1.7.36")
# These brokers use JAXB, which Java 11 removed.
_JAXB = ("javax.xml.bind", "jaxb-api", "2.3.1")
_WANT_JAXB = ("0.10.", "0.11.", "1.0.")
_RESOLVE_TIMEOUT_S = 900.0


class ClusterStartError(TolerantClientError):
    """A Kafka cluster for tests cannot start on this machine; the message names the remedy."""


def cache_dir() -> Path:
    """The folder of resolved jars: TOLERANT_KAFKA_CACHE, else a folder in the user's cache folder."""
    chosen = os.environ.get("TOLERANT_KAFKA_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tolerant-client" / "kafka"


def java_executable(what_for: str = "to run Kafka brokers") -> str:
    """The `java` of JAVA_HOME, else of PATH; error messages say `what_for` it is needed.

    Raises ClusterStartError if there is none or if it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home, "bin", "java") if home else None
    found = str(candidate) if candidate is not None and candidate.exists() else shutil.which("java")
    if found is None:
        raise ClusterStartError(
            f"Java {MIN_JAVA} or newer is needed {what_for}, but there is no `java` on PATH or in "
            f"JAVA_HOME: install a Java {MIN_JAVA} runtime or set JAVA_HOME"
        )
    try:
        asked = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterStartError(
            f"`{found} -version` does not run ({error}): install a Java {MIN_JAVA} runtime or set JAVA_HOME"
        ) from error
    major = java_major(asked.stderr + asked.stdout)
    if major is None or major < MIN_JAVA:
        said = (asked.stderr + asked.stdout).strip().partition("\n")[0]
        raise ClusterStartError(
            f"Java {MIN_JAVA} or newer is needed {what_for}, but {found} says {said!r}: "
            f"install a Java {MIN_JAVA} runtime or set JAVA_HOME"
        )
    return found


def java_major(text: str) -> int | None:
    """The major version in the output of `java -version`, 8 for "1.8.0_392"; None if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def jars(version: str, modules: Sequence[str] = BROKER_MODULES) -> tuple[Path, ...]:
    """The jars of `modules` of org.apache.kafka at `version`, their dependencies, and one slf4j binding.

    The first call for a version resolves them with Maven, or with the Ivy jar of pyspark, which takes seconds
    to a minute; later calls only list a folder and check its jars.
    Raises ClusterStartError if they are not cached and cannot be resolved.
    """
    names = sorted(set(modules))
    place = cache_dir() / version / "+".join(names)
    wanted = [*(("org.apache.kafka", name, version) for name in names), _SLF4J_BINDING]
    if version.startswith(_WANT_JAXB):
        wanted.append(_JAXB)
    return resolved_jars(place, wanted, f"Kafka {version}")


def spark_kafka_jars() -> tuple[Path, ...]:
    """The jars of Spark's own Kafka source and sink, for `spark.jars`: only those of SPARK_KAFKA.

    The first call resolves them, as jars() does.
    Raises ClusterStartError if they are not cached and cannot be resolved.
    """
    version = SPARK_KAFKA[0][2]
    place = cache_dir() / f"spark-{version}" / SPARK_KAFKA[0][1]
    return resolved_jars(place, SPARK_KAFKA, f"Spark's Kafka source {version}", is_transitive=False)


def resolved_jars(
    place: Path, wanted: Sequence[tuple[str, str, str]], what: str, is_transitive: bool = True
) -> tuple[Path, ...]:
    """The jars in the folder `place`, resolved first if it does not exist; `wanted` are (group, artifact, version).

    Raises ClusterStartError; its message calls them the jars of `what`.
    """
    if not place.is_dir():
        java = java_executable()
        with locked(place):
            # Another process may have resolved them while this one waited for the lock.
            if not place.is_dir():
                _resolve_into(place, wanted, what, is_transitive, java)
    found = tuple(sorted(place.glob("*.jar")))
    _require_known(found, place, what)
    return found


def _require_known(found: Sequence[Path], place: Path, what: str) -> None:
    """Raises ClusterStartError for a jar with a wrong sum, an extra jar and a missing jar."""
    sets, sums = _known_sets().get(f"{place.parent.name}/{place.name}", ()), _known_sums()
    for jar in found:
        if jar.name in sums and _sum_of(jar, jar.stat().st_mtime_ns) != sums[jar.name]:
            raise ClusterStartError(
                f"{jar} is not the {jar.name} of {what} (its SHA-256 sum is wrong): somebody has changed it, or the"
                f" repository cannot be trusted; remove {jar.parent}, and resolve it from another repository"
            )
    names = {jar.name for jar in found}
    if sets and names not in sets:
        known = min(sets, key=lambda each: len(each ^ names))
        more, less = (", ".join(sorted(part)[:5]) or "none" for part in (names - known, known - names))
        raise ClusterStartError(
            f"The jars in {place} are not those of {what} (extra: {more}; missing: {less}): somebody has changed the"
            " folder, or the repository cannot be trusted; remove the folder, and resolve it from another repository"
        )
    unknown = [] if sets else [name for name in names if name not in sums]
    if unknown:
        _log.warning(
            "No SHA-256 sum is known for %s jars of %s: they are used as the repository sent them", len(unknown), what
        )


@functools.cache
def _known_sets() -> dict[str, list[frozenset[str]]]:
    """The valid sets of file names for each folder below the cache folder."""
    found: dict[str, list[frozenset[str]]] = {}
    for section in _sections():
        place, *lines = section.splitlines()
        found.setdefault(place.rstrip("]"), []).append(frozenset(line.split()[1] for line in lines))
    return found


@functools.cache
def _known_sums() -> dict[str, str]:
    """The SHA-256 sums by file name."""
    lines = [line for section in _sections() for line in section.splitlines()[1:]]
    return {name: digest for digest, name in map(str.split, lines)}


def _sections() -> list[str]:
    """The sections of jar-sums.txt: a folder in brackets, then the sum and the name of each jar."""
    return Path(__file__).with_name("jar-sums.txt").read_text().split("[")[1:]


@functools.cache
def _sum_of(jar: Path, changed_ns: int) -> str:
    """The SHA-256 sum of a jar, computed once per process unless the jar changes."""
    return hashlib.sha256(jar.read_bytes()).hexdigest()


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep other processes from making `place`; raises ClusterStartError if its folder cannot be written to."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = open(place.parent / f"{place.name}.lock", "w")
    except OSError as error:
        raise ClusterStartError(
            f"The jars of Kafka cannot be stored in {place.parent} ({error.strerror}): set TOLERANT_KAFKA_CACHE to "
            "a writable folder"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve_into(
    place: Path, wanted: Sequence[tuple[str, str, str]], what: str, is_transitive: bool, java: str
) -> None:
    first = f"{wanted[0][1]}-{wanted[0][2]}.jar"
    mvn, ivy = shutil.which("mvn"), _ivy_jar()
    if mvn is None and ivy is None:
        raise ClusterStartError(
            f"The jars of {what} cannot be resolved, because there is neither `mvn` on PATH nor pyspark "
            "with its Ivy jar: install Maven, or `pip install pyspark`"
        )
    tried = []
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".resolving-", ignore_cleanup_errors=True) as temp:
        attempts = []
        if mvn is not None:
            attempts.append(("mvn", _maven_command(Path(temp, "mvn"), mvn, wanted, is_transitive)))
        if ivy is not None:
            command = _ivy_command(Path(temp, "ivy"), java, ivy, wanted, is_transitive)
            attempts.append(("the Ivy jar of pyspark", command))
        for name, command in attempts:
            lib = Path(command[0])
            failure = _run(command[1:], lib.parent)
            if failure is None and not (lib / first).exists():
                failure = f"{first} is not among the jars that it resolved"
            if failure is None:
                _require_known(sorted(lib.glob("*.jar")), place, what)
                lib.rename(place)
                return
            tried.append(f"{name} ({failure})")
    raise ClusterStartError(
        f"The jars of {what} could not be resolved with {' nor with '.join(tried)}: check the version and "
        f"that a Maven repository is reachable, or put the jars into {place}"
    )


def _maven_command(folder: Path, mvn: str, wanted: Sequence[tuple[str, str, str]], is_transitive: bool) -> list[str]:
    """Makes a folder with a pom for these jars; returns the folder for the jars, followed by the command."""
    folder.mkdir()
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version>{'' if is_transitive else alone}</dependency>"
        for group, name, version in wanted
    )
    (folder / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tolerant-client</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    lib = folder / "lib"
    options = [f"-DoutputDirectory={lib}", "-DincludeScope=runtime", "-Dstyle.color=never"]
    return [
        str(lib),
        mvn,
        "-q",
        "-B",
        "--strict-checksums",
        "-f",
        str(folder / "pom.xml"),
        "dependency:copy-dependencies",
        *options,
    ]


def _ivy_command(
    folder: Path, java: str, ivy: Path, wanted: Sequence[tuple[str, str, str]], is_transitive: bool
) -> list[str]:
    """As _maven_command, with an ivy.xml."""
    folder.mkdir()
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} conf='default'"
        f" transitive='{str(is_transitive).lower()}'/>"
        for group, name, version in wanted
    )
    (folder / "ivy.xml").write_text(
        "<ivy-module version='2.0'><info organisation='tolerant-client' module='jars'/>"
        f"<configurations><conf name='default'/></configurations><dependencies>{dependencies}</dependencies>"
        "</ivy-module>\n"
    )
    lib = folder / "lib"
    # Some of Kafka's dependencies are published as OSGi bundles, which Ivy skips by default.
    types = ["-types", "jar", "bundle"]
    return [
        *(str(lib), java, "-jar", str(ivy), "-ivy", str(folder / "ivy.xml"), *types, "-confs", "default"),
        *("-cache", str(folder / "cache"), "-retrieve", f"{lib}/[artifact]-[revision].[ext]"),
    ]


def _ivy_jar() -> Path | None:
    # find_spec does not import pyspark; nothing in tolerant_client does.
    spec = importlib.util.find_spec("pyspark")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    return None


def _run(command: Sequence[str], folder: Path) -> str | None:
    """None if the command succeeded, else one line of its output that explains the failure."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_RESOLVE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    # Without Maven's colours, which -Dstyle.color=never leaves at line starts.
    said = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"ERROR|not found|[Ee]xception", line)] or lines
    return telling[0][:300] if telling else f"exit code {done.returncode}"
