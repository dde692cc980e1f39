"""Files with secrets: keys, tokens, credentials. One that others on the machine can read is refused, not warned about:
its secret has to be taken for known.

A file of root's may be readable by its group, which is how secrets are handed to services and containers (Kubernetes
sets the group of a pod's secrets with fsGroup, whoever the node runs as). A link is followed: orchestrators put secrets
behind links.
"""

import os
import shlex
import stat

from anabranch.errors import InvalidConfigError

ROOT = 0


def read_private(setting: str, path: str, bytes_max: int) -> bytes:
    """What is in the file that `setting` names. Raises InvalidConfigError if it cannot be read, if others can, or if it
    is longer than such a file is."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise _unreadable(setting, path, error) from None
    _check_mode(setting, path, status)
    if len(data) > bytes_max:
        raise InvalidConfigError(
            f"{setting}={path} has more than {bytes_max} bytes: check that it is the file that is meant."
        )
    return data


def check_private(setting: str, path: str) -> None:
    """For a file that a library reads. Raises InvalidConfigError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(setting, path, error) from None
    _check_mode(setting, path, status)


def _unreadable(setting: str, path: str, error: OSError) -> InvalidConfigError:
    return InvalidConfigError(
        f"{setting}={path} cannot be read ({error.strerror or error}): check path and permissions."
    )


def _check_mode(setting: str, path: str, status: os.stat_result) -> None:
    is_handed_over = status.st_uid == ROOT
    refused = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if is_handed_over else stat.S_IRWXG)
    if status.st_mode & refused:
        raise InvalidConfigError(
            f"{setting}={path} may be read by others (mode {stat.S_IMODE(status.st_mode):04o}): chmod 600 "
            f"{shlex.quote(path)}, and consider a new secret. Where it cannot be changed: defaultMode: 0440 for a "
            "Kubernetes secret, mode: 0400 for a Swarm secret."
        )
