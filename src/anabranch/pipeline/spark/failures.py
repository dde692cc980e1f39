"""What went wrong in a Spark job, in one sentence.

An error of ours that was raised in a worker comes back as the text of a Python traceback inside a Java one; here its
own words are found again. Of any other, the first line that says something is kept: the whole is in Spark's log.
"""

import re

_OURS = re.compile(r"anabranch\.errors\.\w+: (.+)")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?!org\.|java\.)(\w[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
_CLASSIFIED = re.compile(r"\[[A-Z][A-Z_.]+\] [^\n]+")
_CAUSED = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CALLED = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_ORNAMENT = re.compile(r"\x1b\[[0-9;]*m|\u21b3")
"""Colours and arrows, by which some libraries show one error inside another."""
LINE_MAX = 400


def in_a_sentence(error: BaseException) -> str:
    """The words of the error that began it."""
    text = str(error)
    for words in (_ours, _of_python, _of_spark, _of_java, _of_a_call):
        found = words(text)
        if found:
            return found
    cause = getattr(error, "_cause", None)  # How pyspark keeps what is behind an error of the JVM.
    if isinstance(cause, BaseException):
        return in_a_sentence(cause)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def in_one_line(error: BaseException) -> str:
    """What a library says of its error, without its line breaks and ornaments, and with a full stop."""
    lines = (line.strip() for line in _ORNAMENT.sub("", str(error)).splitlines())
    words = ": ".join(line.rstrip(":.") for line in lines if line) or type(error).__name__
    return words[:LINE_MAX].rstrip(".") + "."


def _ours(text: str) -> str | None:
    found = _OURS.findall(text)
    return found[-1].strip() if found else None


def _of_python(text: str) -> str | None:
    found = _RAISED.findall(text) if _TRACEBACK in text else []
    return f"{found[-1][0].rpartition('.')[2]}: {found[-1][1]}" if found else None


def _of_spark(text: str) -> str | None:
    found = _CLASSIFIED.search(text)
    return found.group().partition(" SQLSTATE:")[0].strip() if found else None


def _of_java(text: str) -> str | None:
    found = _CAUSED.findall(text)
    return found[-1] if found else None


def _of_a_call(text: str) -> str | None:
    """What a call into the JVM raised: the line after the one that names the call."""
    found = _CALLED.search(text)
    return found.group(1) if found else None
