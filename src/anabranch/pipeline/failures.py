"""What went wrong in a Spark job, in one sentence.

An error of ours that was raised in a worker comes back as the text of a Python traceback inside a Java one; here its
own words are found again. Of any other, the first line that says something is kept: the whole is in Spark's log.
"""

import re

_OURS = re.compile(r"anabranch\.errors\.\w+: (.+)")
_SPARKS = re.compile(r"\[[A-Z][A-Z_.]+\] [^\n]+")
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)
_CAUSED = re.compile(r"^Caused by: (.+)$", re.MULTILINE)


def in_a_sentence(error: BaseException) -> str:
    """The words of the error that began it."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    classified = _SPARKS.search(text)
    if classified:
        return classified.group().partition(" SQLSTATE:")[0].strip()
    raised = _PYTHON.findall(text)
    if raised:
        return f"{raised[-1][0].rpartition('.')[2]}: {raised[-1][1]}"
    caused = _CAUSED.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return caused[-1] if caused else (lines[0] if lines else type(error).__name__)
