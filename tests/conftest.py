"""For all tests: an S3-speaking server, hypothesis without a deadline (a busy machine may take any time), signals that
reach the processes that tests start, and how tests are shared out among workers."""

import gc
import signal

import pytest
from hypothesis import settings
from xdist.remote import Producer

from support.s3_server import s3_bucket, s3_server, s3_url
from support.sharing_out import InOrder, place_in_order

__all__ = ["s3_bucket", "s3_server", "s3_url"]

NEW_OBJECTS_PER_SEARCH = 20_000

settings.register_profile("any time", deadline=None)
settings.load_profile("any time")


def pytest_configure() -> None:
    """Heed the signals that tests send: a shell starts background jobs, and nohup all jobs, with some ignored, and
    every process started from here would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_in_order(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import stay for good: nobody need look for garbage among them, nor so often."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_PER_SEARCH)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> InOrder:
    return InOrder(config, log)
