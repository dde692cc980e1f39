"""A worker looks at Spark's archives once, and at everybody else's whenever it is told to."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from anabranch.pipeline.spark.workers import KeptArchive, keep_archives

Archive = Callable[[str, str], Path]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))

    def made(name: str, package: str) -> Path:
        path = tmp_path / name
        with ZipFile(path, "w") as file:
            file.writestr(f"{package}/__init__.py", "")
            file.writestr(f"{package}/first.py", "number = 1")
            file.writestr(f"{package}/second.py", "number = 2")
        monkeypatch.syspath_prepend(str(path))
        importlib.import_module(f"{package}.first")
        return path

    return made


def add_third(path: Path, package: str) -> None:
    with ZipFile(path, "a") as file:
        file.writestr(f"{package}/third.py", "number = 3")


def importers_of(path: Path) -> list[zipimporter]:
    found = sys.path_importer_cache.values()
    return [one for one in found if isinstance(one, zipimporter) and Path(one.archive) == path]


def test_spark_s_own_archives_are_not_read_again(archive: Archive) -> None:
    path = archive("spark-core_2.13-4.3.0.jar", "own_archive")
    keep_archives()
    add_third(path, "own_archive")
    importlib.invalidate_caches()
    assert {type(one) for one in importers_of(path)} == {KeptArchive}
    assert len(importers_of(path)) == 2, "the archive, and the package in it"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("own_archive.third")


def test_modules_come_out_of_a_kept_archive(archive: Archive) -> None:
    archive("pyspark.zip", "kept_archive")
    keep_archives()
    importlib.invalidate_caches()
    assert importlib.import_module("kept_archive.second").number == 2


def test_other_archives_may_change(archive: Archive) -> None:
    path = archive("jobs.zip", "other_archive")
    keep_archives()
    add_third(path, "other_archive")
    importlib.invalidate_caches()
    assert importlib.import_module("other_archive.third").number == 3
