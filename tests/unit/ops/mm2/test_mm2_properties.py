"""Properties files: lines, continuation, and values that config providers look up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tolerant_client.errors import OptionError
from tolerant_client.ops.mm2.properties import Setting, read_properties

CANARY = "canary-4711"
PROVIDER = "org.apache.kafka.common.config.provider."


def read(path: Path, text: str) -> dict[str, Setting]:
    path.joinpath("mm2.properties").write_text(text)
    return read_properties(path / "mm2.properties")[0]


def providers(**classes: str) -> str:
    lines = [f"config.providers.{name}.class = {PROVIDER}{kind}\n" for name, kind in classes.items()]
    return f"config.providers = {', '.join(classes)}\n" + "".join(lines)


def test_lines_count_through_comments_and_continued_values(tmp_path: Path) -> None:
    settings = read(tmp_path, "# one\n\na = 1 \\\n    2\n! other\nb : 3 \nc d\ne\\ f=\n")
    found = {key: (setting.line, setting.value) for key, setting in settings.items()}
    assert found == {"a": (3, "1 2"), "b": (6, "3"), "c": (7, "d"), "e f": (8, "")}


def test_a_backslash_is_dropped_unless_it_is_doubled(tmp_path: Path) -> None:
    settings = read(tmp_path, "a = .*\\.x\nb = .*\\\\.x\n")
    assert (settings["a"].value, settings["b"].value) == (".*.x", ".*\\.x")


def test_of_two_lines_the_last_one_counts_and_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "mm2.properties").write_text("a=1\nb=2\na=3\n")
    settings, warnings = read_properties(tmp_path / "mm2.properties")
    assert settings["a"].value == "3"
    assert warnings == ("a (line 3) is also in line 1; the last one counts, as in Java",)


def test_a_backslash_that_java_drops_from_topics_is_told(tmp_path: Path) -> None:
    """`payments\\..*` of a command line, in a file, also copies `paymentsX`."""
    (tmp_path / "mm2.properties").write_text(
        "A->B.topics = payments\\..*\ntopics = payments\\\\..*, a\\\n b\nx = \\d\n"
    )
    _, warnings = read_properties(tmp_path / "mm2.properties")
    assert warnings == ("A->B.topics (line 1) has a backslash that Java drops; write \\\\ for one that counts",)


def test_blanks_around_an_arrow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"line 1: write A->\.\.\. without blanks"):
        read(tmp_path, "A -> B.enabled = true\n")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="none.properties cannot be read: No such file"):
        read_properties(tmp_path / "none.properties")
    with pytest.raises(OptionError, match="is not a properties file: .u needs four hexadecimal digits") as refused:
        read(tmp_path, "a = \\u00zz\n")
    assert "zz" not in str(refused.value), "it may be of a password"


def test_values_of_all_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_USER", "mirror")
    (tmp_path / "secrets.properties").write_text("one = first \\\n  line\ntwo=zw\u00f6lf\n", encoding="utf-8")
    (tmp_path / "password").write_text(f"{CANARY}\n")
    text = providers(f="FileConfigProvider", d="DirectoryConfigProvider", e="EnvVarConfigProvider")
    text += f"a = ${{f:{tmp_path}/secrets.properties:one}}, ${{f:{tmp_path}/secrets.properties:two}}\n"
    text += f"b = ${{d:{tmp_path}:password}}\nc = user=${{e:MM2_USER}};\nd = $plain ${{no colon}}\n"
    settings = read(tmp_path, text)
    assert {key: settings[key].value for key in "abcd"} == {
        "a": "first line, zw\u00f6lf", "b": CANARY, "c": "user=mirror;", "d": "$plain ${no colon}",
    }  # fmt: skip
    assert [key for key in "abcd" if settings[key].is_looked_up] == ["a", "b", "c"]
    assert CANARY not in f"{settings} {settings['b'].shown}"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${x:KEY}", "'x' is not in config.providers"),
        ("${e:MM2_NOT_SET}", "the environment has no such variable"),
        ("${e:path:MM2_USER}", "environment variables have no path"),
        ("${f:KEY}", "it has no path; write"),
        ("${f:/nowhere/secrets:KEY}", "No such file"),
        ("${f:PATH/secrets:KEY}", "the file has no such key"),
        ("${d:PATH:none}", "the directory has no such file"),
        ("${d:PATH:../x/secrets}", "the directory has no such file"),
        ("${f:PATH/wrong:KEY}", "the file is not UTF-8, or has a wrong"),
        ("${f:PATH/latin:KEY}", "the file is not UTF-8, or has a wrong"),
    ],
)
def test_what_cannot_be_looked_up_is_refused_without_showing_secrets(tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "secrets").write_text(f"OTHER={CANARY}")
    (tmp_path / "wrong").write_text(f"KEY={CANARY}\\u{CANARY}")
    (tmp_path / "latin").write_bytes(f"KEY={CANARY}\xe4".encode("latin-1"))
    text = providers(f="FileConfigProvider", d="DirectoryConfigProvider", e="EnvVarConfigProvider")
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text + f"secret = {value.replace('PATH', str(tmp_path))}\n")
    assert reason in str(caught.value) and "secret (line 5)" in str(caught.value)
    assert CANARY not in f"{caught.value} {caught.value.__cause__}"


def test_only_allowed_paths_are_read(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "secrets").write_text("KEY=value")
    text = providers(f="FileConfigProvider") + f"config.providers.f.param.allowed.paths = {allowed}\n"
    assert read(tmp_path, text + f"a = ${{f:{allowed}/secrets:KEY}}\n")["a"].value == "value"
    for path in (other / "secrets", allowed / ".." / "allowed-not" / "secrets"):
        with pytest.raises(OptionError, match="it is not below allowed.paths"):
            read(tmp_path, text + f"a = ${{f:{path}:KEY}}\n")
    with pytest.raises(OptionError, match="must be an absolute path that exists"):
        read(tmp_path, text.replace(str(allowed), "relative"))


def test_only_allowed_variables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM2_USER", "mirror")
    monkeypatch.setenv("OTHER", CANARY)
    text = providers(e="EnvVarConfigProvider") + "config.providers.e.param.allowlist.pattern = MM2_.*\n"
    assert read(tmp_path, text + "a = ${e:MM2_USER}\n")["a"].value == "mirror"
    with pytest.raises(OptionError, match="allowlist.pattern does not match it"):
        read(tmp_path, text + "a = ${e:OTHER}\n")
    with pytest.raises(OptionError, match="is not a regular expression"):
        read(tmp_path, text.replace("MM2_.*", "("))


def test_providers_of_java_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"config.providers.v.class \(line 2\): only Kafka's own .* no Java classes"):
        read(tmp_path, "config.providers = v\nconfig.providers.v.class = com.example.VaultConfigProvider\n")
    with pytest.raises(
        OptionError, match=r"config.providers.v.class is required: config.providers \(line 1\) names 'v'"
    ):
        read(tmp_path, "config.providers = v\n")


def test_a_link_out_of_the_allowed_paths_is_not_followed(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    for folder in (allowed, other):
        folder.mkdir()
        (folder / "KEY").write_text("value")
    (allowed / "out").symlink_to(other)
    (allowed / "in").symlink_to(allowed)
    (allowed / "LINK").symlink_to(other / "KEY")
    text = providers(d="DirectoryConfigProvider") + f"config.providers.d.param.allowed.paths = {allowed}\n"
    assert read(tmp_path, text + f"a = ${{d:{allowed}/in:KEY}}\n")["a"].value == "value"
    for place in (f"{allowed}/out:KEY", f"{allowed}:LINK"):
        with pytest.raises(OptionError, match="it is not below allowed.paths"):
            read(tmp_path, text + f"a = ${{d:{place}}}\n")
