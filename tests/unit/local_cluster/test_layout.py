"""Where the brokers of a local cluster live, and what is refused before anything starts."""

import dataclasses
import os
import random
import socket
import stat

import pytest

from anabranch.config import read_settings_file, settings_of_broker
from anabranch.errors import InvalidConfigError, LocalClusterError
from anabranch.local_cluster.layout import (
    BROKERS_MAX,
    hold,
    make_layout,
    prepare,
    read_layout,
    require_cluster_folder,
    require_count,
)
from anabranch.local_cluster.ports import ephemeral_low, free_block, random_block, require_free


def three(folder):
    return make_layout(folder, range(1000, 1003), range(1003, 1006), range(1006, 1009))


def test_layout_is_read_back_as_it_was_written(tmp_path):
    layout = three(tmp_path)
    prepare(layout)
    assert read_layout(tmp_path) == layout


def test_layout_of_brokers_that_tell_another_address_is_read_back(tmp_path):
    layout = three(tmp_path)
    told = dataclasses.replace(layout.places[0], advertise="127.0.0.1:1")
    layout = dataclasses.replace(layout, places=(told, *layout.places[1:]))
    prepare(layout)
    assert read_layout(tmp_path) == layout
    assert layout.joins_of(layout.places[2])[0] == "127.0.0.1:1"


def test_layout_without_http_is_read_back_too(tmp_path):
    layout = make_layout(tmp_path, [1000], [1001], None, "::1")
    prepare(layout)
    assert read_layout(tmp_path) == layout
    assert layout.bootstrap == "[::1]:1000"


def test_folder_without_a_cluster_has_no_layout(tmp_path):
    assert read_layout(tmp_path) is None


def test_moved_folder_takes_its_brokers_along(tmp_path):
    (tmp_path / "before").mkdir()
    prepare(three(tmp_path / "before"))
    (tmp_path / "before").rename(tmp_path / "after")
    moved = read_layout(tmp_path / "after")
    assert moved is not None
    assert moved.places[1].folder == tmp_path / "after" / "broker-1"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "names no broker"),
        ('[broker.0]\nlisten = "127.0.0.1:1"\n', "does not say peer.listen"),
    ],
)
def test_damaged_file_is_refused_with_its_name(tmp_path, content, said):
    (tmp_path / "cluster.toml").write_text(content)
    with pytest.raises(LocalClusterError, match=said) as refused:
        read_layout(tmp_path)
    assert "cluster.toml" in str(refused.value)


def test_secret_is_made_once_and_nobody_else_may_read_it(tmp_path):
    before = os.umask(0)
    try:
        prepare(three(tmp_path))
    finally:
        os.umask(before)
    secret = tmp_path / "secret"
    content = secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(content.strip()) == 64
    prepare(three(tmp_path))
    assert secret.read_text() == content


def test_file_of_a_cluster_is_a_settings_file_for_each_broker(tmp_path):
    prepare(three(tmp_path))
    settings = settings_of_broker(read_settings_file(tmp_path / "cluster.toml"), 1)
    assert settings == {
        "broker.id": 1,
        "cluster.secret.file": str(tmp_path / "secret"),
        "listen": "127.0.0.1:1001",
        "peer.listen": "127.0.0.1:1004",
        "http": "127.0.0.1:1007",
        "data.dir": str(tmp_path / "broker-1"),
        "peer.join": ["127.0.0.1:1003", "127.0.0.1:1005"],
    }


def test_first_broker_begins_the_cluster_and_the_others_join(tmp_path):
    layout = three(tmp_path)
    prepare(layout)
    assert layout.joins_of(layout.places[0]) == []
    assert layout.joins_of(layout.places[1]) == layout.joins_of(layout.places[2]) == ["127.0.0.1:1003"]


def test_first_broker_with_a_new_disk_joins_what_the_others_are(tmp_path):
    layout = three(tmp_path)
    prepare(layout)
    for place in layout.places[1:]:
        (place.folder / "node").touch()
    assert layout.joins_of(layout.places[0]) == ["127.0.0.1:1004", "127.0.0.1:1005"]


def test_broker_asks_only_those_that_can_let_it_in(tmp_path):
    layout = three(tmp_path)
    prepare(layout)
    (layout.places[2].folder / "node").touch()
    assert layout.joins_of(layout.places[1]) == ["127.0.0.1:1005"]


def test_folder_of_a_single_node_is_refused_and_stays_as_it_was(tmp_path):
    (tmp_path / "node").touch()
    with pytest.raises(LocalClusterError, match="data folder of a single node"):
        require_cluster_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalClusterError, match="is a file"):
        require_cluster_folder(tmp_path / "file")
    with pytest.raises(LocalClusterError, match="cannot be used"):
        require_cluster_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize("count", [0, -1, BROKERS_MAX + 1, 10**9])
def test_number_of_brokers_has_limits(count):
    with pytest.raises(InvalidConfigError, match=f"1 to {BROKERS_MAX}"):
        require_count(count)


def test_cluster_that_runs_is_not_started_twice(tmp_path):
    descriptor = hold(tmp_path)
    with pytest.raises(LocalClusterError, match="runs already"):
        hold(tmp_path)
    os.close(descriptor)
    os.close(hold(tmp_path))


# --- ports ------------------------------------------------------------------------------------------------


@pytest.fixture
def taken():
    block = random_block("127.0.0.1", 3, random.Random())
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", block[1]))
        listener.listen()
        yield block


def test_taken_port_is_named(taken):
    with pytest.raises(LocalClusterError, match=f"127.0.0.1:{taken[1]} is taken"):
        require_free("127.0.0.1", taken)


def test_block_begins_behind_a_taken_port(taken):
    assert free_block("127.0.0.1", 2, taken[0]).start > taken[1]


def test_ports_beyond_the_last_are_refused():
    with pytest.raises(InvalidConfigError, match="65535 is the last"):
        require_free("127.0.0.1", range(65534, 65537))


def test_address_of_another_machine_is_refused():
    with pytest.raises(LocalClusterError, match="cannot be bound"):
        require_free("192.0.2.1", range(2000, 2001))


def test_random_ports_lie_below_those_of_outgoing_connections():
    for seed in range(20):
        assert random_block("127.0.0.1", 3, random.Random(seed)).stop <= ephemeral_low()


def test_everything_of_a_cluster_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        require_cluster_folder(tmp_path / "new")
        prepare(three(tmp_path / "new"))
        os.close(hold(tmp_path / "new"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes == {
        **{f"broker-{number}": 0o700 for number in range(3)},
        **dict.fromkeys(("secret", "cluster.toml", "cluster.lock"), 384),
    }
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
