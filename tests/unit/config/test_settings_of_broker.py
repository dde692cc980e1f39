"""One settings file for all brokers of a cluster."""

import pytest

from anabranch.config import read_settings_file, settings_of_broker
from anabranch.errors import InvalidConfigError

FILE = """
flush = "os"
[cluster.secret]
file = "/etc/anabranch/secret"
[broker.1]
listen = "10.0.0.1:9092"
"peer.listen" = "0.0.0.0:9192"
"peer.advertise" = "10.0.0.1:9192"
[broker.2]
listen = "10.0.0.2:9092"
"peer.listen" = "10.0.0.2:9192"
flush = "always"
[broker.3.peer]
listen = "10.0.0.3:9192"
join = ["10.0.0.9:9192"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    return read_settings_file(path)


def test_own_table_wins_over_what_holds_for_all(file):
    assert settings_of_broker(file, 2)["flush"] == "always"
    assert settings_of_broker(file, 1)["flush"] == "os"
    assert settings_of_broker(file, "2")["broker.id"] == 2


def test_broker_joins_all_the_others_by_the_address_they_tell(file):
    assert settings_of_broker(file, 2)["peer.join"] == ["10.0.0.1:9192", "10.0.0.3:9192"]


def test_lowest_number_joins_nobody_because_somebody_must_begin(file):
    assert "peer.join" not in settings_of_broker(file, 1)


def test_join_of_its_own_is_kept(file):
    assert settings_of_broker(file, 3)["peer.join"] == ["10.0.0.9:9192"]


def test_number_may_stand_in_the_file(file):
    assert settings_of_broker({**file, "broker.id": 2})["listen"] == "10.0.0.2:9092"


@pytest.mark.parametrize(
    ("broker_id", "said"), [(None, "--broker-id"), (7, r"no table \[broker.7\]"), ("x", "1, 2, 3")]
)
def test_file_for_many_needs_a_number_that_it_knows(file, broker_id, said):
    with pytest.raises(InvalidConfigError, match=said):
        settings_of_broker(file, broker_id)


def test_file_for_one_node_is_taken_as_it_is():
    settings = {"flush": "os", "broker.id": 4}
    assert settings_of_broker(settings, 9) == settings
