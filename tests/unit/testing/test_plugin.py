"""The pytest plugin as its users see it."""

import subprocess
import sys

import pytest

from anabranch.testing.embedded import EmbeddedBroker

pytest_plugins = ["pytester"]

LOADED_BY_IMPORT = """
import sys
import pytest
before = set(sys.modules)
import anabranch.testing.plugin
print(" ".join(sorted(set(sys.modules) - before)))
"""


def test_importing_the_plugin_imports_nothing_but_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_IMPORT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["anabranch", "anabranch.testing", "anabranch.testing.plugin"]


def test_the_broker_fixture_answers(anabranch_broker: EmbeddedBroker, anabranch_topic: str) -> None:
    anabranch_broker.produce(anabranch_topic, ["hello"])
    assert [record.value for record in anabranch_broker.records(anabranch_topic)] == [b"hello"]


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_an_empty_topic_of_its_own(
    anabranch_broker: EmbeddedBroker, anabranch_topic: str, turn: int
) -> None:
    assert anabranch_broker.records(anabranch_topic) == []
    anabranch_broker.produce(anabranch_topic, [f"turn {turn}"])


def test_the_topic_is_gone_after_its_test_and_settings_can_be_overridden(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def anabranch_settings():
            return {"num.partitions": 3, "flush": "os"}
        """
    )
    pytester.makepyfile(
        """
        topics = []

        def test_first(anabranch_topic):
            topics.append(anabranch_topic)

        def test_second(anabranch_broker):
            assert anabranch_broker.wait_for_records(topics[0], 0, 1) == []
            names = anabranch_broker.topics()
            assert topics[0] not in names

        def test_settings(anabranch_broker):
            anabranch_broker.create_topic("defaults", partitions=-1)
            anabranch_broker.produce("defaults", ["x"], partition=2)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


def test_workers_of_xdist_each_get_a_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("turn", range(4))
        def test_it(anabranch_broker, anabranch_topic, turn):
            anabranch_broker.produce(anabranch_topic, ["x"])
            assert len(anabranch_broker.records(anabranch_topic)) == 1
        """
    )
    pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_public_helpers_are_found_on_the_package() -> None:
    import anabranch.testing

    for name in anabranch.testing.__all__:
        assert getattr(anabranch.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no Nonsense"):
        _ = anabranch.testing.Nonsense
