"""Files with secrets: who may read them, and what is said if others can."""

import os
from pathlib import Path

import pytest

from anabranch.config import NodeSettings
from anabranch.config.private_file import check_private, read_private
from anabranch.errors import InvalidConfigError
from anabranch.gateway.http.access import read_token
from anabranch.objects.credentials import read_credentials
from anabranch.server.peers.security import load_security, read_secret

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "a secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def of_tls_key(path: str) -> object:
    named = {"peer.tls.cert": path, "peer.tls.key": path, "peer.tls.ca": path}
    return load_security(NodeSettings.load({"peer.listen": "127.0.0.1:0", **named}))


READERS = {
    "cluster.secret.file": read_secret,
    "gateway.token.file": read_token,
    "object.credentials.file": lambda path: read_credentials(path, "s3"),
    "peer.tls.key": of_tls_key,
}


OTHERS_UID = 1000


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o444])
@pytest.mark.parametrize("setting", READERS)
def test_a_secret_that_others_can_read_is_refused_with_the_command_that_helps(
    secret: Path, setting: str, mode: int
) -> None:
    secret.chmod(mode)
    if os.geteuid() == 0:
        os.chown(secret, OTHERS_UID, -1)  # What is root's own may be read by its group.
    with pytest.raises(
        InvalidConfigError,
        match=rf"^{setting}=.* \(mode {mode:04o}\): chmod 600 '.*a secret', .*defaultMode: 0440.*mode: 0400",
    ):
        READERS[setting](str(secret))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_of_its_owner_is_read(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    assert read_private("x", str(secret), 100) == SECRET.encode()
    check_private("x", str(secret))


def test_a_secret_behind_a_link_is_read(secret: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(secret)
    assert read_secret(str(link)) == SECRET.encode()


def test_a_missing_or_huge_file_is_refused_by_name(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"x=.*none cannot be read"):
        read_private("x", str(tmp_path / "none"), 100)
    with pytest.raises(InvalidConfigError, match="more than 31 bytes"):
        read_private("x", str(secret), 31)


@pytest.mark.parametrize("runs_as", [0, 1000])
@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o640, True), (0o444, False), (0o460, False)])
def test_the_group_may_read_what_root_hands_over(
    secret: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_read: bool, runs_as: int
) -> None:
    secret.chmod(mode)
    real = os.stat(secret)
    status = os.stat_result((*real[:4], 0, *real[5:]))
    refused = None
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: status)
        patch.setattr(os, "geteuid", lambda: runs_as)
        try:
            check_private("x", str(secret))
        except InvalidConfigError as error:
            refused = str(error)
    assert (refused is None) == is_read
    assert is_read or "chmod 600" in str(refused)
