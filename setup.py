"""What pyproject.toml cannot say about the build: the optional compiled module, and the README of a package index.

Without a C compiler the module is left out with a warning and the pure form runs (`anabranch.record.backend`).
setuptools translates the `.pyx` itself, by the Cython that `build-system.requires` brings.
"""

import re
from pathlib import Path

from setuptools import Extension, setup

ROOM = "src/anabranch/record"
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!#|[a-z]+:)([^)#]+)[^)]*\)")


def description() -> str:
    """README.md without links to files: a package index would resolve them against its own address.

    The names of the files stay. Where the files are, the page says itself: in the source distribution, and the
    documentation also in `share/doc/anabranch`.
    """
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return RELATIVE_LINK.sub(
        lambda link: f"`{link[2]}`" if link[1] == link[2] else f"{link[1]} (`{link[2]}`)", readme
    )


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "anabranch.record._fast",
            [f"{ROOM}/_fast.pyx"],
            depends=[f"{ROOM}/{name}" for name in ("_crc32c.h", "_columns.pxi", "_columns_back.pxi")],
            include_dirs=[ROOM],
            extra_compile_args=["-O3", "-g0"],
            optional=True,
        )
    ],
)
