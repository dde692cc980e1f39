"""The TOML file: tables become dotted names."""

import pytest

from anabranch.config import NodeSettings, read_settings_file
from anabranch.errors import InvalidConfigError


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "node.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_tables_and_dotted_names_mean_the_same(write):
    tables = write("[log.retention]\nms = 5\n")
    assert read_settings_file(tables) == {"log.retention.ms": 5}
    assert read_settings_file(write('"log.retention.ms" = 5\n')) == {"log.retention.ms": 5}


def test_settings_of_a_file_load(write):
    path = write(
        'listen = "127.0.0.1:0"\nflush = "os"\n"flush.interval.ms" = 7\n[log.cleanup]\npolicy = ["compact"]\n'
    )
    node = NodeSettings.load(read_settings_file(path))
    assert (node.listen, node.flush, node.flush_interval_ms) == ("127.0.0.1:0", "os", 7)
    assert node.log_cleanup_policy == ("compact",)


def test_same_setting_written_in_two_ways_is_refused(write):
    with pytest.raises(InvalidConfigError, match=r"sets log\.retention\.ms twice"):
        read_settings_file(write('"log.retention.ms" = 5\n[log.retention]\nms = 6\n'))


@pytest.mark.parametrize(
    ("content", "said"), [("listen = ", "is not TOML"), (b'listen = "\xff"', "is not UTF-8")]
)
def test_file_that_cannot_be_understood_is_refused_by_name(write, content, said):
    path = write(content)
    with pytest.raises(InvalidConfigError, match=said) as refusal:
        read_settings_file(path)
    assert str(path) in str(refusal.value)


def test_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidConfigError, match=r"none\.toml cannot be read"):
        read_settings_file(tmp_path / "none.toml")
