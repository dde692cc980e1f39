"""obstore in a process of ours: it ends when it should, keeps secrets, and is not even loaded for a folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.testing.store_proxy import StoreProxy, Trouble
from support.s3_server import CREDENTIALS, S3Server

END_S_MAX = 60
OPEN = """
import asyncio, logging, sys
logging.basicConfig(level=logging.DEBUG)
from anabranch.broker.workers import ThreadWorkers
from anabranch.clock import RealClock
from anabranch.errors import StoreError
from anabranch.log.disk.real_files import RealFiles
from anabranch.objects.stores import check_store, open_store

def opened(timeout_ms=600_000):
    workers = ThreadWorkers(asyncio.get_running_loop(), 1, 1)
    return open_store(sys.argv[1], files=RealFiles(), workers=workers, clock=RealClock(), timeout_ms=timeout_ms)
"""


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OPEN + program, *arguments],
        capture_output=True,
        text=True,
        timeout=END_S_MAX,
        check=False,
    )


@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_requests_under_way_do_not_keep_a_process_from_ending(
    s3_server: S3Server, s3_bucket: str, how: str
) -> None:
    program = """
async def main():
    store = opened()
    asked = [asyncio.ensure_future(store.put("segments/1", [bytes(100_000)])) for _ in range(5)]
    asked.append(asyncio.ensure_future(store.get("segments/1")))
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in asked)
    if sys.argv[2] == "leave":
        print("left", flush=True)
        sys.exit(0)

asyncio.run(main())
print("ended")
"""
    with StoreProxy(s3_server.endpoint) as proxy:
        proxy.fail(Trouble.DEAF)
        done = python(program, s3_server.url(s3_bucket, "", proxy.endpoint), how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == {"cancel": "ended\n", "leave": "left\n"}[how]


def test_no_log_line_of_any_level_holds_a_credential(s3_server: S3Server, s3_bucket: str) -> None:
    program = """
async def main():
    store = opened(1000)
    await store.put("segments/1", [b"x"])
    for ask in (store.put("segments/1", [b"x"]), store.get("none"), store.get("segments/1", 5, 9), check_store(store)):
        try:
            await ask
        except StoreError as error:
            logging.exception("%s %r", error, store, stack_info=True)
    print(store, repr(store), store.url, vars(store))

asyncio.run(main())
"""
    with StoreProxy(s3_server.endpoint) as proxy:
        proxy.fail(Trouble.DENIED, kind="LIST")
        done = python(program, s3_server.url(s3_bucket, "", proxy.endpoint))
    assert done.returncode == 0, done.stderr
    assert "ObjectExistsError" in done.stderr
    assert "StoreRefusedError" in done.stderr
    for secret in CREDENTIALS.values():
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_folder_needs_no_library(tmp_path: Path, scheme: str) -> None:
    program = """
async def main():
    await opened().put("segments/1", [b"x"])

asyncio.run(main())
import json
print(json.dumps([name for name in sys.modules if name.startswith(("obstore", "anabranch.objects.cloud"))]))
"""
    done = python(program, {"file": f"file://{tmp_path}/objects", "memory": "memory:"}[scheme])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
