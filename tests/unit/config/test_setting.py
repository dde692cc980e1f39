"""One setting: how a value is read, bounded, refused and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config import NODE_SETTINGS, host_and_port, is_loopback
from anabranch.config.setting import Kind, text_of
from anabranch.errors import InvalidConfigError


def setting(name):
    return NODE_SETTINGS[name]


@pytest.mark.parametrize("given", ["5", " 5 ", 5, "+5"])
def test_whole_number_is_read_from_text_and_from_a_number(given):
    assert setting("num.partitions").parse(given) == 5


@pytest.mark.parametrize("given", ["", "five", "1.0", "1_000", "٥", "1e3", True, 1.5, None, [], "9" * 5000])
def test_what_is_no_whole_number_is_refused_by_name(given):
    with pytest.raises(InvalidConfigError, match=r"num\.partitions=.* is not a whole number"):
        setting("num.partitions").parse(given)


@pytest.mark.parametrize("given", ["0", "-1", "2147483648"])
def test_number_out_of_bounds_is_refused_with_its_bounds(given):
    with pytest.raises(InvalidConfigError, match="from 1 to 10000"):
        setting("num.partitions").parse(given)


@pytest.mark.parametrize("given", ["nan", "inf", "x", True, "1.1", "-0.1"])
def test_ratio_is_a_number_from_nought_to_one(given):
    with pytest.raises(InvalidConfigError, match="from 0 to 1"):
        setting("log.cleaner.min.cleanable.ratio").parse(given)


@pytest.mark.parametrize(("given", "wanted"), [("TRUE", True), (" false ", False), (True, True)])
def test_boolean_is_read_in_any_case(given, wanted):
    assert setting("delete.topic.enable").parse(given) is wanted


@pytest.mark.parametrize("given", ["yes", "1", "", 1])
def test_what_is_neither_true_nor_false_is_refused(given):
    with pytest.raises(InvalidConfigError, match="true or false"):
        setting("delete.topic.enable").parse(given)


def test_list_is_trimmed_and_loses_repetitions():
    assert setting("log.cleanup.policy").parse(" compact, delete,compact ,") == ("compact", "delete")


def test_unknown_item_of_a_list_is_refused_by_name():
    with pytest.raises(InvalidConfigError, match=r"log\.cleanup\.policy=shred is not known"):
        setting("log.cleanup.policy").parse("delete,shred")


@pytest.mark.parametrize("name", list(NODE_SETTINGS))
def test_every_default_is_a_value_that_would_be_accepted(name):
    default = NODE_SETTINGS[name].default
    if default is not None:
        assert NODE_SETTINGS[name].parse(text_of(default)) == default


@pytest.mark.parametrize("name", list(NODE_SETTINGS))
def test_every_setting_has_its_sentence(name):
    assert NODE_SETTINGS[name].doc.endswith(".")


@given(st.sampled_from(list(NODE_SETTINGS.values())), st.text(max_size=30))
def test_any_text_is_either_a_value_or_refused_by_name(one, text):
    try:
        value = one.parse(text)
    except InvalidConfigError as error:
        said = str(error)
    else:
        said = one.name if one.kind is not Kind.INT or isinstance(value, int) else ""
    assert one.name in said


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        ("box.example:65535", ("box.example", 65535)),
    ],
)
def test_address_is_host_and_port(address, wanted):
    assert host_and_port(address) == wanted


@pytest.mark.parametrize(
    "address", ["", "9092", "box", ":9092", "box:", "box:65536", "box:-1", "::1:9092", "box:٩"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="write for example"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host, wanted):
    assert is_loopback(host) is wanted
