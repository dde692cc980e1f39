"""The one part of the build that pyproject.toml has no words for: the optional compiled module.

Without a C compiler it is left out with a warning and the pure form runs (`anabranch.record.backend`). setuptools
translates the `.pyx` itself, by the Cython that `build-system.requires` brings.
"""

from setuptools import Extension, setup

ROOM = "src/anabranch/record"

setup(
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
