"""docs/settings.md is what the tables say."""

from pathlib import Path

from anabranch.config.settings_page import page


def test_page_of_settings_is_what_the_tables_say():
    written = Path(__file__).parents[3] / "docs" / "settings.md"
    assert written.read_text() == page(), (
        "renew it: python -m anabranch.config.settings_page > docs/settings.md"
    )
