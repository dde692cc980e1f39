"""The page docs/settings.md, written from the tables.

`python -m anabranch.config.settings_page > docs/settings.md` renews it. A test compares the page with what
this module writes, so that it cannot go stale.
"""

import sys
from collections.abc import Callable, Iterator, Mapping

from anabranch.config.node_settings import NODE_SETTINGS
from anabranch.config.setting import LONG_MAX, Kind, Setting, text_of
from anabranch.config.topic_settings import TOPIC_SETTINGS

HEAD = """# Settings

Written by `python -m anabranch.config.settings_page`: change `src/anabranch/config/`, not this page. A
setting that means what Kafka's means has Kafka's name. Sizes are bytes; a name says its unit.
"""
NODE_HEAD = """
## Of a node

Given by `anabranch up --set name=value`, or in a TOML file by `--config FILE` (tables flatten:
`[log.retention]` with `ms = 60000` is `log.retention.ms`). They do not change while the node runs.
"""
TOPIC_HEAD = """
## Of a topic

Given by `anabranch topic create --config name=value`, changed by `anabranch topic alter`, or by any Kafka
admin client. What a topic does not set, the node's setting in the last column decides. Those that say *no
effect* are accepted because Kafka's tools send them.
"""


def page() -> str:
    return "\n".join(
        [
            HEAD + NODE_HEAD,
            *_table(NODE_SETTINGS, ("setting", "default", "may be", "what it does"), _node_row),
            TOPIC_HEAD,
            *_table(
                TOPIC_SETTINGS, ("config", "default", "may be", "what it does", "decided by"), _topic_row
            ),
            "",
        ]
    )


def _table(
    settings: Mapping[str, Setting], columns: tuple[str, ...], row_of: Callable[[Setting], tuple[str, ...]]
) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "| " + " | ".join("---" for _ in columns) + " |"
    for setting in settings.values():
        yield "| " + " | ".join(row_of(setting)) + " |"


def _node_row(setting: Setting) -> tuple[str, ...]:
    return f"`{setting.name}`", _default(setting), _expected(setting), setting.doc


def _topic_row(setting: Setting) -> tuple[str, ...]:
    return *_node_row(setting), ", ".join(f"`{name}`" for name in setting.synonyms)


def _default(setting: Setting) -> str:
    words: dict[object, str] = {None: "unset", LONG_MAX: "unlimited", (): "empty"}
    return words.get(setting.default) or f"`{text_of(setting.default)}`"


def _expected(setting: Setting) -> str:
    bounded = setting.kind in (Kind.INT, Kind.LONG) and setting.high in (2**31 - 1, LONG_MAX)
    return f"at least {setting.low}" if bounded else setting.expected


if __name__ == "__main__":
    sys.stdout.write(page())
