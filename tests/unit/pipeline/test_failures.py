"""What Spark raises, in one sentence."""

import pytest

from anabranch.pipeline.spark.failures import LINE_MAX, in_a_sentence, in_one_line

IN_A_WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/source.py", line 3, in read
    raise DataLossError("orders-0 begins at offset 7, not 3.")
anabranch.errors.DataLossError: orders-0 begins at offset 7, not 3.
"""
IN_JAVA = """An error occurred while calling o1.load.
: org.apache.spark.SparkException: Job aborted
Caused by: java.io.FileNotFoundException: /gone
"""

IN_A_STREAM = """[STREAM_FAILED] Query [id = 1]: [PYTHON_ERROR] Failed when: Traceback (most recent call last):
  File "x.py", line 1, in read
TypeError: takes 7 arguments
 SQLSTATE: 38000
org.apache.spark.SparkException: Job aborted
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (IN_A_WORKER, "orders-0 begins at offset 7, not 3."),
        (IN_A_STREAM, "TypeError: takes 7 arguments"),
        (IN_JAVA, "java.io.FileNotFoundException: /gone"),
        (
            "calling o1\n: x.SparkException: [PATH_NOT_FOUND] No such path. SQLSTATE: 1\n",
            "[PATH_NOT_FOUND] No such path.",
        ),
        ("An error occurred while calling None.X.\n: x.y.SparkException: no core\n\tat x.y", "no core"),
        ("nothing known\nbut this", "nothing known"),
    ],
)
def test_words_of_the_error_that_began_it_are_found(text, said):
    assert in_a_sentence(RuntimeError(text)) == said


def test_error_without_words_is_called_by_its_name():
    assert in_a_sentence(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no such bucket.", "no such bucket."),
        ("Generic error\n  \x1b[31m\u21b3\x1b[0m bad name\n", "Generic error: bad name."),
        ("", "RuntimeError."),
        ("x" * 1000, "x" * LINE_MAX + "."),
    ],
)
def test_words_of_a_library_become_one_line(text, said):
    assert in_one_line(RuntimeError(text)) == said


def test_words_of_what_is_behind_an_error_that_says_nothing_are_found():
    error = RuntimeError("Error while instantiating 'X':")
    error._cause = RuntimeError("[INVALID_CONF_VALUE] x should be a number. SQLSTATE: 1")
    assert in_a_sentence(error) == "[INVALID_CONF_VALUE] x should be a number."
