"""What can be said of the session without starting one."""

import os
import signal
import threading

import pytest

from anabranch.pipeline.spark import session


def test_ctrl_c_while_the_jvm_comes_up_is_heard_once_it_is_there():
    reached = []

    def start():
        with session.interrupts_waiting():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == ["the end"]


def test_sigterm_while_the_jvm_comes_up_is_heard_once_it_is_there_too():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with session.interrupts_waiting():
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_what_nohup_has_ignored_stays_so_while_the_jvm_comes_up():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with session.interrupts_waiting():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handler_of_ctrl_c_is_afterwards_what_it_was():
    before = signal.getsignal(signal.SIGINT)
    with session.interrupts_waiting():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_may_start_a_session_too():
    reached = []

    def start():
        with session.interrupts_waiting():
            reached.append("the end")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert reached == ["the end"]


@pytest.fixture
def no_environment(monkeypatch):
    monkeypatch.delenv("MASTER", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.usefixtures("no_environment")
def test_embedded_spark_listens_on_this_machine_alone():
    settings = session._settings(None, "x", {})
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.usefixtures("no_environment")
def test_spark_of_a_cluster_listens_where_its_workers_can_reach_it():
    settings = session._settings("spark://host:7077", "x", {})
    assert settings["spark.master"] == "spark://host:7077"
    assert "spark.driver.bindAddress" not in settings


@pytest.mark.usefixtures("no_environment")
def test_master_of_spark_submit_is_kept(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in session._settings(None, "x", {})


def test_what_the_caller_says_wins():
    assert session._settings("local[2]", "x", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "Error occurred during initialization of VM\nToo small maximum heap\n",
            "Error occurred during initialization of VM: Too small maximum heap",
        ),
        (
            '26/11/15 13:43:06 WARN Set X\nException in thread "main" X: not "x"\n\tat a.b(C)\n\t... 3 more',
            'Exception in thread "main" X: not "x"',
        ),
        ("WARNING: Using incubator modules", "it says nothing of why."),
    ],
)
def test_complaint_of_a_jvm_that_does_not_start_is_one_line(words, said):
    assert session.complaint(words) == said
