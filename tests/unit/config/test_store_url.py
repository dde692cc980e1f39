"""URLs of object stores: what they may say, and that a refusal does not repeat them."""

import pytest

from anabranch.config import NodeSettings
from anabranch.config.store_url import StoreUrl, parse_store_url
from anabranch.errors import InvalidConfigError

S3_LOCAL = {"endpoint": "http://127.0.0.1:9000", "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("file:///var/lib/objects", StoreUrl("file", "", "/var/lib/objects")),
        ("file:/var//lib/./objects/", StoreUrl("file", "", "/var/lib/objects")),
        ("file:///with%20space", StoreUrl("file", "", "/with space")),
        ("memory:", StoreUrl("memory", "", "")),
        ("memory:shared", StoreUrl("memory", "", "shared")),
        ("s3://bucket", StoreUrl("s3", "bucket", "")),
        ("s3://my.bucket-1/a/b/", StoreUrl("s3", "my.bucket-1", "a/b")),
        ("s3://b1?endpoint=http://127.0.0.1:9000&region=eu-west-1", StoreUrl("s3", "b1", "", S3_LOCAL)),
        (
            "s3://b1/p?endpoint=http%3A%2F%2F127.0.0.1%3A9000&region=eu-west-1",
            StoreUrl("s3", "b1", "p", S3_LOCAL),
        ),
        ("gs://bucket/x_y", StoreUrl("gs", "bucket", "x_y")),
        ("az://container/x?account=mine", StoreUrl("az", "container", "x", {"account": "mine"})),
    ],
)
def test_a_url_is_parsed_and_written_so_that_it_parses_again(text: str, parsed: StoreUrl) -> None:
    assert parse_store_url(text) == parsed
    assert parse_store_url(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no URL of a store"),
        ("/var/lib/objects", "is no URL of a store"),
        ("http://bucket", "write file:///PATH"),
        ("s3:bucket", "names no bucket"),
        ("s3://", "names no bucket"),
        ("s3://a_very bad one", "names no bucket"),
        ("s3://[bad", "is no URL"),
        ("s3://bucket/a b", "signs that need quoting"),
        ("s3://bucket/../other", "signs that need quoting"),
        ("s3://bucket#part", "signs that need quoting"),
        ("s3://bucket?region=a/b", "says a region that cannot be"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "says an endpoint that is no address"),
        ("s3://bucket?endpoint=http://host:99999", "says an endpoint that is no address"),
        ("s3://bucket?endpoint=", "says an endpoint that is no address"),
        ("gs://bucket?region=x", "an option that gs: does not know"),
        ("file:relative/path", "needs the whole path"),
        ("file://host/path", "needs the whole path"),
        ("file:///", "is no folder for objects"),
        ("file:///a/../b", "is no folder for objects"),
        ("memory:a b", "may say a plain name"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said) as refused:
        NodeSettings.load({"object.store": text})
    assert str(refused.value).startswith("object.store ")


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAKEY:hunter2@bucket/prefix",
        "s3://bucket?secret_access_key=hunter2",
        "s3://bucket?endpoint=http://user:hunter2@host",
        "s3://bucket?endpoint=http://host?token=hunter2",
        "s3://bucket/prefix#hunter2",
        "az://container?sas_token=hunter2",
        "http://hunter2@host/",
        "hunter2",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        NodeSettings.load({"object.store": text})
    assert "hunter2" not in repr(refused.value)
    assert refused.value.__cause__ is None


def test_gathering_more_than_may_wait_is_refused() -> None:
    settings = {"object.store": "memory:", "object.gather.bytes": 2**21, "append.queue.bytes.max": 2**20}
    with pytest.raises(InvalidConfigError, match=r"object\.gather\.bytes is above append\.queue\.bytes\.max"):
        NodeSettings.load(settings)


def test_without_a_store_nothing_of_it_is_looked_at() -> None:
    assert NodeSettings.load({}).object_store is None
