"""StoreUrl: where a cluster keeps its objects, as people write it.

    file:///var/lib/objects                             a folder of this machine, or one that all brokers mount
    memory: or memory:NAME                              for tests: gone with the process
    s3://BUCKET/PREFIX?endpoint=URL&region=NAME         also in AWS_ENDPOINT_URL and AWS_REGION
    gs://BUCKET/PREFIX
    az://CONTAINER/PREFIX?account=NAME                  also in AZURE_STORAGE_ACCOUNT_NAME

A URL is shown in listings and logs, so it may hold no secret: what looks like one is refused, and a refusal never
repeats what was written.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from anabranch.errors import InvalidConfigError

OPTIONS = {"s3": ("endpoint", "region"), "gs": ("endpoint",), "az": ("account", "endpoint")}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/=-]*")
_OPTION = re.compile(r"[A-Za-z0-9-]+")
_FORMS = "file:///PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or memory:"
_SECRETS = (
    "names a user or a password, and a URL is shown to everybody: leave them out, and give credentials by the "
    "environment or in object.credentials.file."
)


class StoreUrl(NamedTuple):
    scheme: str
    bucket: str
    """Or container; empty for `file:` and `memory:`."""
    path: str
    """Of a folder; in a bucket, what all names begin with, without slashes around it; the name of a memory."""
    options: Mapping[str, str] = {}

    def __str__(self) -> str:
        if self.scheme == "memory":
            return f"memory:{self.path}"
        path = quote(self.path) if self.scheme == "file" else self.path and f"/{self.path}"
        query = urlencode(sorted(self.options.items()), safe=":/")
        return f"{self.scheme}://{self.bucket}{path}{'?' if query else ''}{query}"


def parse_store_url(text: str) -> StoreUrl:
    """Raises InvalidConfigError, which does not repeat the URL: it may hold a secret."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _refuse(f"is no URL: write {_FORMS}.") from None
    if "@" in parts.netloc:
        raise _refuse(_SECRETS)
    match parts.scheme:
        case "file":
            return _folder(parts)
        case "memory":
            return _memory(parts)
        case "s3" | "gs" | "az":
            return _cloud(parts)
        case _:
            raise _refuse(f"is no URL of a store: write {_FORMS}.")


def _folder(parts: SplitResult) -> StoreUrl:
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or parts.query or parts.fragment or "\0" in path:
        raise _refuse("needs the whole path of a folder and nothing else: write file:///var/lib/objects.")
    if ".." in path.split("/") or not path.strip("/"):
        raise _refuse("is no folder for objects: write the path without .. and choose one below /.")
    return StoreUrl("file", "", "/" + "/".join(part for part in path.split("/") if part not in ("", ".")))


def _memory(parts: SplitResult) -> StoreUrl:
    name = parts.path
    if parts.netloc or parts.query or parts.fragment or not _PREFIX.fullmatch(name):
        raise _refuse("may say a plain name and nothing else: write memory: or memory:NAME.")
    return StoreUrl("memory", "", name)


def _cloud(parts: SplitResult) -> StoreUrl:
    scheme, bucket = parts.scheme, parts.netloc
    prefix = "/".join(part for part in parts.path.split("/") if part)
    if not _BUCKET.fullmatch(bucket):
        raise _refuse(f"names no bucket, or one that cannot be: write {scheme}://BUCKET/PREFIX.")
    if not _PREFIX.fullmatch(prefix) or parts.fragment or {".", ".."} & set(prefix.split("/")):
        raise _refuse("has a prefix with signs that need quoting: use letters, digits, - _ . and /.")
    return StoreUrl(scheme, bucket, prefix, _options(scheme, parts.query))


def _options(scheme: str, query: str) -> dict[str, str]:
    allowed = OPTIONS[scheme]
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in allowed:
            known = " and ".join(allowed)
            raise _refuse(
                f"has an option that {scheme}: does not know; it knows {known}. Credentials are given by the "
                "environment or in object.credentials.file."
            )
        if name == "endpoint":
            _check_endpoint(value)
        elif not _OPTION.fullmatch(value):
            raise _refuse(f"says a {name} that cannot be: letters, digits and - only.")
        options[name] = value
    return options


def _check_endpoint(value: str) -> None:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or parts.query or parts.fragment:
        raise _refuse("says an endpoint that is no address: write endpoint=https://HOST:PORT.")
    if "@" in parts.netloc:
        raise _refuse(_SECRETS)


def _refuse(why: str) -> InvalidConfigError:
    return InvalidConfigError(f"object.store {why}")
