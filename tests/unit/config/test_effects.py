"""No setting is accepted in vain: it is read somewhere, or it says that it has no effect."""

import re
from pathlib import Path

import pytest

import anabranch
from anabranch.config import NODE_SETTINGS, TOPIC_SETTINGS, Setting

SOURCES = "\n".join(path.read_text() for path in Path(anabranch.__file__).parent.rglob("*.py"))
READ = set(re.findall(r"\.(\w+)\b(?!\s*=[^=])", SOURCES))
DECIDED_FOR_TOPICS = {name for setting in TOPIC_SETTINGS.values() for name in setting.synonyms}


def is_read(setting: Setting) -> bool:
    return setting.name.replace(".", "_") in READ


@pytest.mark.parametrize("name", sorted(NODE_SETTINGS))
def test_setting_of_a_node_is_read_or_decides_for_topics(name: str) -> None:
    assert is_read(NODE_SETTINGS[name]) or name in DECIDED_FOR_TOPICS


@pytest.mark.parametrize("name", sorted(TOPIC_SETTINGS))
def test_config_of_a_topic_is_read_unless_it_says_that_it_has_no_effect(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    assert is_read(setting) is setting.has_effect
    assert setting.has_effect or setting.doc.startswith(("No effect: ", "Only false: "))
