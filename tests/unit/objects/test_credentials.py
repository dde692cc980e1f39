"""Credentials of a store: from a private file or the environment, and never to be seen."""

import asyncio
import os
from pathlib import Path

import pytest

from anabranch.config import NodeSettings
from anabranch.config.store_url import parse_store_url
from anabranch.errors import InvalidConfigError, ObjectGoneError, StoreRefusedError, StoreUnavailableError
from anabranch.objects.cloud_errors import CloudAnswer, explain
from anabranch.objects.cloud_store import open_cloud_store
from anabranch.objects.credentials import read_credentials

SECRET = "wJalrXUtnFEMI-hunter2"
KEY_ID = "AKIAHUNTER2"
OTHERS_UID = 1000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    path.write_text(f"# ours\nAWS_ACCESS_KEY_ID={KEY_ID}\naws_secret_access_key = '{SECRET}'\n\n")
    path.chmod(0o600)
    return path


def test_lines_of_names_and_values_are_read(file: Path) -> None:
    assert dict(read_credentials(str(file), "s3")) == {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
    }


def test_a_file_of_the_aws_tools_serves(file: Path) -> None:
    file.write_text(f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
    assert read_credentials(str(file), "s3")["aws_secret_access_key"] == SECRET


def test_the_json_of_a_service_account_serves_for_google(file: Path) -> None:
    file.write_text('{"type": "service_account"}')
    assert dict(read_credentials(str(file), "gs")) == {
        "google_service_account_key": '{"type": "service_account"}'
    }


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o606, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, OTHERS_UID, -1)  # What is root's own may be read by its group.
    with pytest.raises(InvalidConfigError, match=r"may be read by others \(mode 0[0-7]*\): chmod 600"):
        read_credentials(str(file), "s3")


@pytest.mark.parametrize(
    ("content", "scheme", "said"),
    [
        ("", "s3", "holds no credentials"),
        ("# nothing\n", "s3", "holds no credentials"),
        (SECRET, "s3", "line 1 is not NAME=VALUE"),
        (f"AWS_ACCESS_KEY_ID={KEY_ID}\n{SECRET}=x", "s3", "line 2 is not NAME=VALUE"),
        (f"AWS_SECRET_ACCESS_KEY={SECRET}", "az", "begins with AZURE_"),
        (f"[one]\nAWS_SECRET_ACCESS_KEY={SECRET}\n[two]\n", "s3", "has several sections"),
        (SECRET * 10_000, "s3", "more than 65536 bytes"),
    ],
)
def test_a_file_that_cannot_be_is_refused_without_showing_it(
    file: Path, content: str, scheme: str, said: str
) -> None:
    file.write_text(content)
    with pytest.raises(InvalidConfigError, match=said) as refused:
        read_credentials(str(file), scheme)
    assert SECRET not in repr(refused.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(file: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        read_credentials(f"{file}.none", "s3")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidConfigError, match="is not text"):
        read_credentials(str(file), "s3")


def test_nothing_of_a_store_shows_its_credentials(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    credentials = read_credentials(str(file), "s3")
    store = open_cloud_store(parse_store_url("s3://bucket/prefix"), str(file), 1000)
    for text in (repr(credentials), str(credentials), f"{credentials}", repr(store), str(store), store.url):
        assert SECRET not in text
        assert KEY_ID not in text


def test_describe_configs_shows_where_credentials_are_and_not_what(file: Path) -> None:
    settings = NodeSettings.load({"object.store": "s3://bucket", "object.credentials.file": str(file)})
    entries = {entry.name: entry.value for entry in settings.describe()}
    assert entries["object.credentials.file"] == str(file)
    assert entries["object.store"] == "s3://bucket"
    assert SECRET not in repr(settings) + repr(settings.describe())


def test_credentials_that_the_library_cannot_take_are_refused_without_showing_them(file: Path) -> None:
    file.write_text(f"GOOGLE_SERVICE_ACCOUNT_KEY={SECRET}\nGOOGLE_NO_SUCH_THING={SECRET}\n")
    with pytest.raises(InvalidConfigError, match="cannot be opened with what the environment") as refused:
        open_cloud_store(parse_store_url("gs://bucket"), str(file), 1000)
    assert SECRET not in repr(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(InvalidConfigError, match=r"pip install 'anabranch\[objects\]'"):
        open_cloud_store(parse_store_url("s3://bucket"), None, 1000)


# --- what stores answer ------------------------------------------------------------------------------------------


ANSWERS = {
    "wrong key": (
        "Generic S3 error: Error performing PUT http://host/bucket?X-Amz-Credential={key} in 3ms - Server returned "
        "non-2xx status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{key}"
        "</AWSAccessKeyId></Error>",
        StoreRefusedError,
        "403 InvalidAccessKeyId",
    ),
    "wrong signature": (
        "status: 403, body: <Error><Code>SignatureDoesNotMatch</Code><StringToSign>{secret}</StringToSign></Error>",
        StoreRefusedError,
        "403 SignatureDoesNotMatch",
    ),
    "expired": (
        "status code: 400 Bad Request: <Code>ExpiredToken</Code><Token-0>{secret}</Token-0>",
        StoreRefusedError,
        "have expired",
    ),
    "wrong clock": (
        "status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>",
        StoreRefusedError,
        "clock is wrong",
    ),
    "wrong region": (
        "status code: 301 Moved Permanently: <Code>PermanentRedirect</Code>",
        StoreRefusedError,
        "another region",
    ),
    "bad request": (
        "status code: 400 Bad Request: <Code>InvalidArgument</Code>",
        StoreRefusedError,
        "refuses the request (400 InvalidArgument)",
    ),
    "overload": (
        "status code: 503 Service Unavailable: <Code>SlowDown</Code>?sig={secret}",
        StoreUnavailableError,
        "503 SlowDown",
    ),
    "too many": ("status code: 429 Too Many Requests", StoreUnavailableError, "cannot do it now (429)"),
    "conflict": (
        "status code: 409 Conflict: <Code>ConditionalRequestConflict</Code>",
        StoreUnavailableError,
        "409",
    ),
    "no credentials": (
        "Error performing PUT http://169.254.169.254/latest/api/token in 5s - HTTP error: kind: Timeout",
        StoreUnavailableError,
        "was given no credentials",
    ),
    "no credentials from a service that refuses": (
        "Error performing GET http://169.254.169.254/computeMetadata/v1 in 5ms - status code: 403 Forbidden",
        StoreUnavailableError,
        "was given no credentials",
    ),
    "broken": ("HTTP error: {secret} kind: Request", StoreUnavailableError, "broke the connection off"),
    "no bucket at google": (
        "status code: 404 Not Found: The specified bucket does not exist.",
        StoreRefusedError,
        "has no bucket bucket",
    ),
    "gone": (
        "status code: 404 Not Found: <Code>NoSuchKey</Code>",
        ObjectGoneError,
        "has no object segments/1",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_becomes_a_sentence_without_what_it_quotes(case: str) -> None:
    text, kind, said = ANSWERS[case]
    answer = CloudAnswer(Exception(text.format(key=KEY_ID, secret=SECRET)))
    error = explain(parse_store_url("s3://bucket/p"), "segments/1", answer)
    assert type(error) is kind
    assert said in str(error)
    assert str(error).endswith(".")
    assert SECRET not in str(error)
    assert KEY_ID not in str(error)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://box", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_credentials_are_called_what_they_are_called_there(url: str, name: str) -> None:
    assert name in str(
        explain(parse_store_url(url), "o", CloudAnswer(Exception("status code: 403 Forbidden")))
    )


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("gs://bucket/p?endpoint=http://127.0.0.1:1", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        ("az://box/p?account=mine&endpoint=http://127.0.0.1:1", {"AZURE_STORAGE_ACCOUNT_KEY": "aGVsbG8="}),
        ("s3://bucket/p?endpoint=http://127.0.0.1:1", {"AWS_SKIP_SIGNATURE": "true"}),
    ],
)
def test_every_cloud_is_asked_at_the_endpoint_of_its_url(
    url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = open_cloud_store(parse_store_url(url), None, 5000)
    with pytest.raises(StoreUnavailableError, match="cannot be reached: check the endpoint"):
        asyncio.run(store.get("segments/1"))


def test_the_environment_is_left_as_it_was(file: Path) -> None:
    before = dict(os.environ)
    open_cloud_store(parse_store_url("s3://bucket"), str(file), 1000)
    assert dict(os.environ) == before
