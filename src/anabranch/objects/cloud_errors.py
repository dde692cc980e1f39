"""What a cloud store's refusal means, in a sentence of ours.

The library's own texts quote whole answers and URLs: key ids, signed strings, tokens. None of that may reach a log, so
only the status, the store's short code and the kind of failure are taken out of them.
"""

import re

from anabranch.config.store_url import StoreUrl
from anabranch.errors import (
    ObjectExistsError,
    ObjectGoneError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)

_STATUS = re.compile(r"status(?: code)?: ([1-5][0-9]{2})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Decode|Interrupted|Request|Unknown)\b")
TRY_AGAIN = frozenset({408, 409, 425, 429})
"""Refusals that mean: later. So do all from 500 on."""
NAMES = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_KEY"}
"""By which people know what is meant by credentials there."""


class CloudAnswer:
    """What can be said aloud of one failure."""

    def __init__(self, error: BaseException) -> None:
        text = str(error)
        self.error_name = type(error).__name__
        self.status = _number(_STATUS.search(text))
        self.code = _word(_CODE.search(text))
        self.kind = _word(_KIND.search(text))
        self.is_unknown_host = "dns error" in text or "failed to lookup address" in text
        self.wants_metadata_service = "169.254.169.254" in text or "metadata.google.internal" in text
        self.lacks_bucket = (
            self.code in ("NoSuchBucket", "ContainerNotFound") or "bucket does not exist" in text
        )

        self.is_whole_instead = "NotPartial" in text
        """The store overheard that a part was asked for, and sent everything."""

    @property
    def is_beyond_end(self) -> bool:
        """A range that begins where the object has ended."""
        return self.status == 416

    @property
    def is_not_implemented(self) -> bool:
        """A store that does not speak conditional PUTs."""
        return self.status == 501 or self.code == "NotImplemented" or self.error_name == "NotSupportedError"

    @property
    def said(self) -> str:
        return " ".join(str(part) for part in (self.status, self.code) if part)


def explain(place: StoreUrl, name: str, answer: CloudAnswer) -> StoreError:
    """The error of ours for it."""
    store = f"The object store {place}"
    if answer.lacks_bucket:
        return StoreRefusedError(f"{store} has no bucket {place.bucket}: create it, or correct object.store.")
    if answer.error_name in ("AlreadyExistsError", "PreconditionError") or answer.status == 412:
        return ObjectExistsError(f"{store} has an object {name} already.")
    if answer.error_name == "FileNotFoundError" or answer.status == 404:
        return ObjectGoneError(f"{store} has no object {name}.")
    credentials = f"{NAMES[place.scheme]} and its like in the environment, or object.credentials.file"
    if answer.wants_metadata_service:
        return StoreUnavailableError(
            f"{store} was given no credentials, and this machine has no service that gives any: set {credentials}."
        )
    refusal = _refusal(answer, credentials)
    if refusal is not None:
        return StoreRefusedError(f"{store} {refusal}")
    return StoreUnavailableError(f"{store} {_trouble(answer)}")


def _refusal(answer: CloudAnswer, credentials: str) -> str | None:
    """What nobody gets past by asking again; None: it may be otherwise next time."""
    status = answer.status or 0
    if answer.code in ("ExpiredToken", "TokenRefreshRequired"):
        return f"says that the credentials have expired ({answer.said}): renew {credentials}."
    if answer.code == "RequestTimeTooSkewed":
        return f"says that this machine's clock is wrong ({answer.said}): set it."
    if status in (401, 403) or answer.error_name in ("PermissionDeniedError", "UnauthenticatedError"):
        return (
            f"does not accept the credentials, or they may not do this ({answer.said or 'denied'}): check "
            f"{credentials}."
        )
    if status in (301, 307, 308) or answer.code in (
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraint",
    ):
        return f"is in another region or at another address ({answer.said}): add ?region= or ?endpoint= to the URL."
    if 400 <= status < 500 and status not in TRY_AGAIN:
        return f"refuses the request ({answer.said}): check the URL and that the bucket takes objects."
    return None


def _trouble(answer: CloudAnswer) -> str:
    if answer.status:
        return f"cannot do it now ({answer.said}); it is asked again."
    if answer.is_unknown_host:
        return "cannot be reached: its host has no address; check the endpoint and the network."
    if answer.kind == "Connect":
        return "cannot be reached: check the endpoint, and whether it runs."
    if answer.kind == "Timeout" or answer.error_name == "TimeoutError":
        return "does not answer in time; it is asked again."
    return "broke the connection off; it is asked again."


def _number(found: re.Match[str] | None) -> int | None:
    return None if found is None else int(found[1])


def _word(found: re.Match[str] | None) -> str | None:
    return None if found is None else found[1]
