"""Topics in a consumer's metadata."""

import pytest

from anabranch.coordination.groups.subscription import subscribed_topics
from support.group_bench import subscription


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_topics_are_read_from_every_version(version: int) -> None:
    assert subscribed_topics(subscription("a", "bé", version=version)) == {"a", "bé"}


def test_newer_version_is_read_as_the_newest_known() -> None:
    newer = b"\0\x09" + subscription("a", version=3)[2:] + b"what version 9 adds"
    assert subscribed_topics(newer) == {"a"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\xff\xff\0\0\0\0",
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\0\5ab",
        b"\0\0\0\0\0\1\0\1\xff",
    ],
)
def test_what_is_no_subscription_is_none(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
