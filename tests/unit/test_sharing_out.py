from support.sharing_out import THE_SESSION, place_in_order, unit_of_work


def test_tests_of_the_session_are_one_unit_of_work_and_all_others_one_for_each_file() -> None:
    assert unit_of_work("tests/pipeline/test_stream.py") == THE_SESSION
    for file in (
        "tests/pipeline/test_demo.py",
        "tests/unit/pipeline/test_session.py",
        "tests/chaos/test_kill.py",
        "tests/test_new.py",
    ):
        assert unit_of_work(file) == file


def test_what_waits_comes_before_what_computes() -> None:
    files = [
        "tests/pipeline/test_stream.py",
        "tests/pipeline/test_demo.py",
        "tests/chaos/test_kill.py",
        "tests/clients/test_cli.py",
        "tests/simulation/test_one_node.py",
        "tests/unit/pipeline/test_session.py",
        "tests/new/test_new.py",
    ]
    backwards = files[::-1]
    assert sorted(backwards, key=place_in_order) == files
