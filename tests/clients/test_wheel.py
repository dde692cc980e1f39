"""What `make dist` makes: built from a clean copy, installed into an empty environment, and used from there.

The build's own requirements and the wheel's are downloaded once; everything after that works without a network, so that
a failure is one of the package. The environment gets nothing of this one: no PYTHONPATH, and no development extras.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

import anabranch
from clients.registries import or_skip, python_wheels
from support.doc_pages import ROOT

pytestmark = pytest.mark.interop

BUILD_S_MAX = 300
RUN_S_MAX = 60
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "*.so", "_fast.c",
    "build", "dist", "anabranch-data", "anabranch-demo",
)  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    re.split(r"[^\w.-]", requirement)[0].lower()
    for extra in PROJECT["project"]["optional-dependencies"].values()
    for requirement in extra
} - {PROJECT["project"]["name"]}
RELATIVE_LINK = re.compile(r"\]\((?!#|https?:)[^)]*\)")


def run(*command: object, environment: dict[str, str], seconds_max: float = RUN_S_MAX, **more: object) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        **more,
    )
    assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def pip_in(programs: Path) -> list[object]:
    """This environment's pip, at work in another one, which need not have its own."""
    return [sys.executable, "-m", "pip", "--python", programs / "python"]


@pytest.fixture(scope="module")
def offline() -> dict[str, str]:
    """An environment in which pip finds what the build and the wheel need, and nothing else."""
    needed = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    name = f"lean-{hashlib.sha256(' '.join(needed).encode()).hexdigest()[:12]}"
    wheels = or_skip(lambda: python_wheels(name, needed))
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PIP_", "ANABRANCH_"))
    }
    return {**plain, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, offline: dict[str, str]) -> tuple[Path, Path]:
    """The wheel and the source distribution, built as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_COPIED)
    command = [sys.executable, "-m", "build", "--outdir", folder, folder / "checkout"]
    run(*command, environment=offline, seconds_max=BUILD_S_MAX)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory, packages: tuple[Path, Path], offline: dict[str, str]
) -> Path:
    """Where the programs of an environment are that has the wheel, and what it asks for, alone."""
    folder = tmp_path_factory.mktemp("lean")
    venv.create(folder)
    run(*pip_in(folder / "bin"), "install", packages[0], environment=offline, seconds_max=BUILD_S_MAX)
    return folder / "bin"


@pytest.fixture
def bootstrap(programs: Path, offline: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A node out of the wheel."""
    command = [programs / "anabranch", "up", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data"]
    with subprocess.Popen(
        [*map(str, command), "--format", "json"], env=offline, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            yield json.loads(node.stdout.readline())["bootstrap"]
        finally:
            node.terminate()
    assert node.returncode == 0


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def test_records_pass_through_a_node_installed_from_the_wheel(
    programs: Path, bootstrap: str, offline: dict[str, str], tmp_path: Path
) -> None:
    def call(*words: str, stdin: str = "") -> str:
        return run(programs / "anabranch", *words, environment=offline, cwd=tmp_path, input=stdin)

    assert call("version").startswith(f"anabranch {anabranch.__version__}")
    call("produce", "orders", "--bootstrap", bootstrap, stdin="two apples\none pear\n")
    assert call("consume", "orders", "--bootstrap", bootstrap).split("\n")[:-1] == ["two apples", "one pear"]


def test_wheel_holds_the_package_and_its_documents_alone(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[0]) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist()}
    stem = f"anabranch-{anabranch.__version__}"
    assert folders == {"anabranch", "pyspark_anabranch", f"{stem}.dist-info", f"{stem}.data"}


def test_wheel_needs_nothing_of_the_extras(programs: Path, offline: dict[str, str]) -> None:
    listed = json.loads(run(*pip_in(programs), "list", "--format", "json", environment=offline))
    names = {each["name"].lower() for each in listed}
    assert "anabranch" in names
    assert names & EXTRAS == set()


def test_page_on_a_package_index_has_no_link_that_leads_nowhere(packages: tuple[Path, Path]) -> None:
    metadata = metadata_of(packages[0])
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = metadata.get_payload()
    assert RELATIVE_LINK.findall((ROOT / "README.md").read_text()) != []
    assert RELATIVE_LINK.findall(page) == []
    assert "`docs/gateway.md`" in page


def test_documents_that_messages_name_are_installed(programs: Path) -> None:
    installed = programs.parent / "share" / "doc" / "anabranch"
    for folder in (".", "docs", "docs/decisions"):
        there = {path.name for path in (installed / folder).glob("*.md")}
        assert there == {path.name for path in (ROOT / folder).glob("*.md")}


def test_source_distribution_is_the_repository(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "src/**/*.py",
        "src/**/*.pyx",
        "tests/**/*.py",
        "tools/*.py",
        "examples/**/*.py",
    ):
        there = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert there - names == set()
