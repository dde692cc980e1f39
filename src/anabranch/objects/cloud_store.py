"""CloudStore: `s3:`, `gs:` and `az:` through obstore; the only module that imports it.

Its requests run in threads of its own, which end with the process, and their results come back to the loop that awaits
them. It repeats nothing by itself: whoever asks decides whether to ask again. One request may take `timeout_ms`, and a
second more for each MiB, from dialling to the last byte.

PUTs are conditional (If-None-Match: *). A store that does not know that is told to overwrite instead, and says so once:
a name is used for one object only, so that what is overwritten is the same bytes of an earlier try.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from anabranch.config.setting import is_loopback
from anabranch.config.store_url import StoreUrl
from anabranch.errors import InvalidConfigError, ObjectGoneError, StoreRefusedError
from anabranch.objects.cloud_errors import CloudAnswer, explain
from anabranch.objects.credentials import Credentials, read_credentials
from anabranch.objects.store import Buffer, StoredObject

if TYPE_CHECKING:
    import obstore.store

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 5
LIST_OBJECTS_MAX = 1000
DELETE_OBJECTS_MAX = 1000
MIB = 2**20
SIZE_UNKNOWN = 64 * MIB
"""What is assumed of an object that is read to its end, for how long that may take."""
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}

T = TypeVar("T")
Store = Any  # Of obstore: S3Store, GCSStore or AzureStore.


def open_cloud_store(place: StoreUrl, credentials_file: str | None, timeout_ms: int) -> "CloudStore":
    """Raises InvalidConfigError."""
    credentials = Credentials()
    if credentials_file is not None:
        credentials = read_credentials(credentials_file, place.scheme)
    return CloudStore(place, _open(place, credentials, timeout_ms), timeout_ms)


def _open(place: StoreUrl, credentials: Credentials, timeout_ms: int) -> Store:
    try:
        import obstore.store as stores
    except ImportError:
        raise InvalidConfigError(
            f"object.store={place} needs a package that is not installed: pip install 'anabranch[objects]'."
        ) from None
    endpoint = _endpoint(place, credentials, os.environ)
    config = {**credentials, **_options(place, endpoint)}
    try:
        match place.scheme:
            case "s3":
                return stores.S3Store(place.bucket, **_common(place, config, endpoint, timeout_ms))
            case "gs":
                return stores.GCSStore(place.bucket, **_common(place, config, endpoint, timeout_ms))
            case _:
                return stores.AzureStore(place.bucket, **_common(place, config, endpoint, timeout_ms))
    except Exception:  # noqa: BLE001 - Whatever it says may quote a credential, and it means one thing.
        failed = True
    assert failed
    raise InvalidConfigError(
        f"object.store={place} cannot be opened with what the environment and object.credentials.file say: check "
        "their names (AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT_KEY, AZURE_STORAGE_ACCOUNT_NAME ...) and values."
    )


def _endpoint(place: StoreUrl, credentials: Credentials, environment: Mapping[str, str]) -> str | None:
    if said := place.options.get("endpoint"):
        return said
    for name in ENDPOINTS[place.scheme]:
        if said := credentials.get(name.lower()) or environment.get(name):
            return said
    return None


def _options(place: StoreUrl, endpoint: str | None) -> dict[str, str]:
    options = {}
    if endpoint is not None:
        _warn_if_open(place, endpoint)
        options[{"s3": "aws_endpoint", "gs": "google_base_url", "az": "azure_endpoint"}[place.scheme]] = (
            endpoint
        )
    if region := place.options.get("region"):
        options["aws_region"] = region
    if account := place.options.get("account"):
        options["azure_storage_account_name"] = account
    return options


def _warn_if_open(place: StoreUrl, endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        logger.warning(
            "%s is reached without TLS: whoever can listen reads all records; use an https endpoint", place
        )


def _common(place: StoreUrl, config: dict[str, str], endpoint: str | None, timeout_ms: int) -> dict[str, Any]:
    is_open = endpoint is not None and endpoint.startswith("http:")
    client: obstore.store.ClientConfig = {
        "allow_http": is_open,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
        # Ours comes first; this one only sees to it that nothing outlives us for ever.
        "timeout": timedelta(hours=1),
    }
    retry: obstore.store.RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(milliseconds=timeout_ms)}
    return {
        "prefix": place.path or None,
        "config": config,
        "client_options": client,
        "retry_config": retry,
    }


class CloudStore:
    def __init__(self, place: StoreUrl, store: Store, timeout_ms: int) -> None:
        self.url = str(place)
        self._place = place
        self._store = store
        self._timeout_ms = timeout_ms
        self._is_conditional = True

    def __repr__(self) -> str:
        return f"CloudStore({self.url!r})"

    async def put(self, name: str, pieces: Sequence[Buffer]) -> None:
        size = sum(len(piece) for piece in pieces)
        body = list(pieces) or [b""]
        if self._is_conditional:
            answer = await self._tried(self._put(name, body, "create"), size)
            if not isinstance(answer, CloudAnswer):
                return
            if not answer.is_not_implemented:
                raise explain(self._place, name, answer)
            self._is_conditional = False
            logger.warning("%s does not know conditional PUTs: objects are written without", self.url)
        await self._asked(self._put(name, body, "overwrite"), name, size)

    def _put(self, name: str, body: list[Buffer], mode: str) -> Awaitable[object]:
        put: Awaitable[object] = self._store.put_async(name, body, mode=mode, use_multipart=False)
        return put

    async def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        if end is not None:
            return await self._read(name, {"range": (start, end)}, slice(start, end), end - start)
        options = {"range": {"offset": start}} if start else {}
        return await self._read(name, options, slice(start, None), SIZE_UNKNOWN)

    async def get_end(self, name: str, size: int) -> bytes:
        if self._place.scheme != "az":
            return await self._read(name, {"range": {"suffix": size}}, slice(-size, None), size)
        # Azure does not count from the end.
        whole = await self._asked(self._store.head_async(name), name, 0)
        return await self.get(name, max(0, whole["size"] - size), whole["size"])

    async def _read(self, name: str, options: Mapping[str, object], part: slice, size: int) -> bytes:
        content = await self._tried(self._content(name, options), size)
        if not isinstance(content, CloudAnswer):
            return content
        if content.is_beyond_end:
            return b""
        if content.is_whole_instead:
            return (await self._asked(self._content(name, {}), name, SIZE_UNKNOWN))[part]
        raise explain(self._place, name, content)

    async def _content(self, name: str, options: Mapping[str, object]) -> bytes:
        result = await self._store.get_async(name, options=options)
        content: bytes = (await result.bytes_async()).to_bytes()
        return content

    async def delete(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), DELETE_OBJECTS_MAX):
            some = list(names[first : first + DELETE_OBJECTS_MAX])
            try:
                await self._asked(self._store.delete_async(some), some[0], len(some) * MIB // 100)
            except ObjectGoneError:
                await self._delete_each(some)

    async def _delete_each(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._asked(self._store.delete_async(name), name, 0)
            except ObjectGoneError:
                continue

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        # The library takes whole segments for a prefix only. What lies before ours is passed over by where to begin.
        folder = prefix.rpartition("/")[0]
        last = max(after, prefix[:-1])
        stream = self._store.list(folder or None, offset=last or None, chunk_size=LIST_OBJECTS_MAX)
        while chunk := await self._asked(_next_chunk(stream), prefix, 0):
            page = [_line(meta) for meta in chunk]
            for before, line in zip([last, *(line.name for line in page)], page, strict=False):
                self._check_order(before, line.name)
            last = page[-1].name
            ours = [line for line in page if line.name.startswith(prefix) and line.name > after]
            if ours:
                yield ours
            if last > prefix and not last.startswith(prefix):
                return

    def _check_order(self, before: str, name: str) -> None:
        if name <= before:
            raise StoreRefusedError(
                f"The object store {self.url} does not list names in their order, as S3 Express does not: use an "
                "ordinary bucket."
            )

    async def close(self) -> None:
        """Its connections end with it."""

    # --- every request -----------------------------------------------------------------------------------------

    async def _asked(self, request: Awaitable[T], name: str, size: int) -> T:
        answer = await self._tried(request, size)
        if isinstance(answer, CloudAnswer):
            raise explain(self._place, name, answer)
        return answer

    async def _tried(self, request: Awaitable[T], size: int) -> "T | CloudAnswer":
        """The errors of the library stay in here: not even as the cause of another may their texts get out."""
        try:
            async with asyncio.timeout((self._timeout_ms + 1000 * size / MIB) / 1000):
                return await request
        except Exception as error:  # noqa: BLE001 - All it raises is told apart by `explain`.
            return CloudAnswer(error)


async def _next_chunk(stream: Any) -> Sequence[Mapping[str, Any]]:
    try:
        chunk: Sequence[Mapping[str, Any]] = await anext(stream)
        return chunk
    except StopAsyncIteration:
        return ()


def _line(meta: Mapping[str, Any]) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
