"""Every API in every version the node advertises: a populated request is answered, and refused, as it should be."""

import pytest

from anabranch.broker.handlers import HANDLERS
from anabranch.wire.api_keys import ApiKey
from anabranch.wire.codec import versions_of
from support.exchanges import EXCHANGES, World, make_world
from support.raw_client import RawClient
from support.wire_node import WireNode

pytestmark = pytest.mark.usefixtures("others_served")

EVERY_VERSION = [
    pytest.param(key, version, id=f"{key.name}-v{version}")
    for key, api in HANDLERS.items()
    for version in api.versions
]


@pytest.fixture(scope="module")
def world(node: WireNode) -> World:
    with RawClient(node.bootstrap) as client:
        return make_world(client)


def test_the_exchanges_below_cover_what_the_node_advertises(client: RawClient) -> None:
    rows = client.ask(ApiKey.API_VERSIONS, 0, {})["api_keys"]
    assert {row["api_key"] for row in rows} == set(EXCHANGES)
    for row in rows:
        served = HANDLERS[ApiKey(row["api_key"])].versions
        assert row["max_version"] == served[-1]
        assert row["min_version"] == (0 if row["api_key"] == ApiKey.PRODUCE else served[0])


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_a_populated_request_is_answered(client: RawClient, world: World, key: ApiKey, version: int) -> None:
    EXCHANGES[key][0](client, version, world)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_a_request_for_what_is_not_there_is_refused(
    client: RawClient, world: World, key: ApiKey, version: int
) -> None:
    EXCHANGES[key][1](client, version, world)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_empty_arrays_and_defaults_everywhere_are_answered(
    client: RawClient, key: ApiKey, version: int
) -> None:
    client.ask(key, version, {"acks": 1} if key == ApiKey.PRODUCE else {})


def test_tables_hold_every_version_that_is_advertised() -> None:
    for key, api in HANDLERS.items():
        assert set(api.versions) <= set(versions_of(key))
