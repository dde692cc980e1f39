"""Where each broker of a local cluster lives: one folder, remembered in its `cluster.toml`.

    DIR/cluster.toml    addresses of every broker and their object store: made at the first start, used at every later
    DIR/secret          the secret with which brokers authenticate to each other; only its owner may read it
    DIR/broker-N        the data folder of broker N
    DIR/broker-N.log    what it says
    DIR/cluster.lock    held while the cluster runs

`cluster.toml` is also a settings file: `anabranch up --config DIR/cluster.toml --broker-id 1` starts one of them alone.
A crash while it is written leaves the old file or none.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anabranch.config import broker_tables, read_settings_file
from anabranch.errors import InvalidConfigError, LocalClusterError
from anabranch.local_cluster.ports import address

BROKERS_MAX = 16
"""More processes than that on one machine only fight for it."""
LOCAL_HOST = "127.0.0.1"
FOLDER_MODE = 0o700
HEAD = """# The brokers of one local cluster, written by `anabranch cluster up`. Each table holds for one broker:
# `anabranch up --config cluster.toml --broker-id 1` starts broker 1 alone.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One broker's addresses and files."""

    broker_id: int
    kafka: str
    peer: str
    http: str | None
    folder: Path
    log: Path
    advertise: str | None = None
    """The address the others dial, if it is not `peer`."""


@dataclass(frozen=True, slots=True)
class Layout:
    folder: Path
    places: tuple[Place, ...]
    object_store: str | None = None
    """Where all of them keep the topics in mode object."""

    @property
    def config_file(self) -> Path:
        return self.folder / "cluster.toml"

    @property
    def secret_file(self) -> Path:
        return self.folder / "secret"

    @property
    def bootstrap(self) -> str:
        return ",".join(place.kafka for place in self.places)

    def joins_of(self, place: Place) -> list[str]:
        """Whom this broker asks to be let in: those that have been in the cluster before. In a new cluster that is
        nobody yet: the first broker begins it, and the others ask that one, since they cannot let each other in."""
        others = [other for other in self.places if other is not place]
        begun = [other for other in others if is_data_folder(other.folder)]
        if not begun and place is not self.places[0]:
            begun = [self.places[0]]
        return [other.advertise or other.peer for other in begun]


def make_layout(
    folder: Path,
    kafka_ports: Sequence[int],
    peer_ports: Sequence[int],
    http_ports: Sequence[int] | None,
    host: str = LOCAL_HOST,
) -> Layout:
    https = http_ports if http_ports is not None else [None] * len(kafka_ports)
    places = tuple(
        Place(
            number,
            address(host, kafka),
            address(LOCAL_HOST, peer),
            None if http is None else address(LOCAL_HOST, http),
            folder / f"broker-{number}",
            folder / f"broker-{number}.log",
        )
        for number, (kafka, peer, http) in enumerate(zip(kafka_ports, peer_ports, https, strict=True))
    )
    return Layout(folder, places)


def read_layout(folder: Path) -> Layout | None:
    """The cluster this folder was made for; None if it is new. Folders are taken from where the file is now."""
    path = folder / "cluster.toml"
    if not path.exists():
        return None
    settings = read_settings_file(path)
    tables = broker_tables(settings)
    store = settings.get("object.store")
    try:
        places = tuple(
            Place(
                number,
                str(table["listen"]),
                str(table["peer.listen"]),
                None if table.get("http") is None else str(table["http"]),
                folder / f"broker-{number}",
                folder / f"broker-{number}.log",
                None if table.get("peer.advertise") is None else str(table["peer.advertise"]),
            )
            for number, table in sorted(tables.items())
        )
    except KeyError as error:
        raise LocalClusterError(
            f"{path} does not say {error.args[0]} of every broker: restore the file, or choose another folder."
        ) from error
    if not places:
        raise LocalClusterError(f"{path} names no broker: restore the file, or choose another folder.")
    return Layout(folder, places, None if store is None else str(store))


def write_layout(layout: Layout) -> None:
    lines = [HEAD, f'"cluster.secret.file" = {_quoted(layout.secret_file.absolute())}\n']
    if layout.object_store is not None:
        lines.append(f'"object.store" = {_quoted(layout.object_store)}\n')
    for place in layout.places:
        lines.append(f"\n[broker.{place.broker_id}]\nlisten = {_quoted(place.kafka)}\n")
        lines.append(f'"peer.listen" = {_quoted(place.peer)}\n')
        if place.advertise is not None:
            lines.append(f'"peer.advertise" = {_quoted(place.advertise)}\n')
        if place.http is not None:
            lines.append(f"http = {_quoted(place.http)}\n")
        lines.append(f'"data.dir" = {_quoted(place.folder.absolute())}\n')
    _replace(layout.config_file, "".join(lines))


def _quoted(value: object) -> str:
    return json.dumps(str(value))  # A JSON string is a basic string of TOML.


def _replace(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="utf-8", opener=private) as file:
        file.write(content)
    os.replace(new, path)


def private(path: str, flags: int) -> int:
    """Open a file that, if it is made, is its owner's alone: an `opener`. Links are not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def prepare(layout: Layout) -> None:
    """Make what is missing: the folders, the secret, `cluster.toml`."""
    try:
        for place in layout.places:
            place.folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        if not layout.secret_file.exists():
            make_secret(layout.secret_file)
        write_layout(layout)
    except OSError as error:
        raise cannot_use(layout.folder, error) from error


def make_secret(path: Path) -> None:
    """A secret that nobody else may read, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")


def is_data_folder(folder: Path) -> bool:
    """Whether a broker has ever started in it."""
    return (folder / "node").exists()


def require_cluster_folder(folder: Path) -> None:
    """Refuse a folder that is something else."""
    if folder.exists() and not folder.is_dir():
        raise LocalClusterError(f"{folder} is a file: choose another --data-dir.")
    if is_data_folder(folder):
        raise LocalClusterError(
            f"{folder} is the data folder of a single node, not of a local cluster: choose another --data-dir, or let "
            "that node grow with `anabranch up --peer-listen` and brokers that --join it."
        )
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_use(folder, error) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise LocalClusterError(
            f"The folder {folder} is not writable: change its owner or choose another --data-dir."
        )


def require_count(count: int) -> None:
    if not 1 <= count <= BROKERS_MAX:
        raise InvalidConfigError(
            f"{count} brokers cannot run here: a local cluster has 1 to {BROKERS_MAX}; more belong on more machines."
        )


def hold(folder: Path) -> int:
    """The lock that says this cluster runs; let go of when the process ends."""
    try:
        descriptor = os.open(folder / "cluster.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise cannot_use(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LocalClusterError(
            f"The cluster of {folder} runs already: stop it first, or choose another --data-dir."
        ) from None
    return descriptor


def cannot_use(folder: Path, error: OSError) -> LocalClusterError:
    return LocalClusterError(
        f"{error.filename or folder} cannot be used ({error.strerror or error}): choose another --data-dir."
    )
