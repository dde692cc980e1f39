"""Credentials of a store, from a file: never shown, never logged, and refused if others may read it.

Lines of NAME=VALUE, with the names of the environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY ...); `#` begins a
comment. A file of the AWS tools with one section serves as well, and for `gs:` the JSON of a service account. What is
in the file wins over the environment.
"""

from anabranch.config.private_file import read_private
from anabranch.errors import InvalidConfigError

PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
CREDENTIALS_BYTES_MAX = 64 * 1024


class Credentials(dict[str, str]):
    """By the library's names. Shows its names, not its values."""

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self))})"

    __str__ = __repr__


def read_credentials(path: str, scheme: str) -> Credentials:
    """Raises InvalidConfigError, which names the file and the line but nothing that is in it."""
    text = _read_private(path)
    if scheme == "gs" and text.lstrip().startswith("{"):
        return Credentials(google_service_account_key=text)
    credentials = Credentials()
    sections = 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            sections += 1
            _check_sections(path, sections)
            continue
        name, value = _pair(path, number, line, scheme)
        credentials[name] = value
    if not credentials:
        raise InvalidConfigError(
            f"object.credentials.file={path} holds no credentials: write NAME=VALUE lines into it, or leave it out."
        )
    return credentials


def _pair(path: str, number: int, line: str, scheme: str) -> tuple[str, str]:
    name, equals, value = line.removeprefix("export ").partition("=")
    name = name.strip().lower()
    if not equals or not name.startswith(PREFIXES[scheme]) or not name.replace("_", "").isalnum():
        raise InvalidConfigError(
            f"object.credentials.file={path}: line {number} is not NAME=VALUE with a name that begins with "
            f"{PREFIXES[scheme].upper()}: correct it."
        )
    return name, value.strip().strip("\"'")


def _check_sections(path: str, count: int) -> None:
    if count > 1:
        raise InvalidConfigError(
            f"object.credentials.file={path} has several sections: leave one, so that it is clear which is meant."
        )


def _read_private(path: str) -> str:
    try:
        return read_private("object.credentials.file", path, CREDENTIALS_BYTES_MAX).decode()
    except UnicodeDecodeError:
        raise InvalidConfigError(
            f"object.credentials.file={path} is not text: write NAME=VALUE lines into it."
        ) from None
