"""What the checker of branch topics finds, and what it lets pass."""

import pytest

from chaos.branch_history import Ack, Client, Seen, check


def sound() -> tuple[list[Client], list[Seen]]:
    """Two sides that were joined: b's second record was written again behind a's."""
    final = [Seen(0, 0, "a-0"), Seen(0, 1, "a-1"), Seen(0, 1 << 32, "b-0"), Seen(0, 2 << 32, "b-1")]
    a = Client("a", 2, [Ack(0, 0, 0, 1, 2), Ack(1, 0, 1, 3, 4)], list(final))
    b = Client("b", 2, [Ack(0, 0, 1 << 32, 1, 2), Ack(1, 0, 7, 3, 4)], list(final))
    return [a, b], final


def kinds(clients: list[Client], final: list[Seen]) -> list[str]:
    return [violation.kind for violation in check(clients, final)]


def test_joined_sides_pass() -> None:
    assert kinds(*sound()) == []


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    clients, final = sound()
    assert kinds(clients, final[:-1]) == ["lost"]


def test_a_consumer_that_never_saw_it_has_missed_it() -> None:
    clients, final = sound()
    clients[0].reads = [seen for seen in clients[0].reads if seen.value != "b-0"]
    assert kinds(clients, final) == ["missed"]


def test_a_second_copy_is_a_duplicate_unless_its_producer_counts_nothing() -> None:
    clients, final = sound()
    final.append(Seen(0, 3 << 32, "a-1"))
    assert kinds(clients, final) == ["duplicate"]
    clients[0].is_idempotent = False
    assert kinds(clients, final) == []


def test_records_of_one_producer_and_one_branch_keep_their_order() -> None:
    clients, final = sound()
    final[0], final[1] = Seen(0, 1, "a-0"), Seen(0, 0, "a-1")
    assert "order" in kinds(clients, final)


def test_a_producer_that_went_to_another_branch_may_have_gone_there_before_both_were_joined() -> None:
    clients, final = sound()
    final[2], final[3] = Seen(0, 1 << 32, "b-1"), Seen(0, 2 << 32, "b-0")
    for client in clients:
        client.reads = list(final)
    assert kinds(clients, final) == []


def test_a_client_need_not_know_where_its_record_is() -> None:
    clients, final = sound()
    clients[1].acks[0] = clients[1].acks[0]._replace(offset=None)
    assert kinds(clients, final) == []
    assert kinds(clients, [seen for seen in final if seen.value != "b-0"]) == ["lost"]


@pytest.mark.parametrize("value", ["c-0", "a-2", "a-x", ""])
def test_a_value_that_nobody_sent_is_invented(value: str) -> None:
    clients, final = sound()
    assert kinds(clients, [*final, Seen(0, 9 << 32, value)]) == ["invented"]


def test_an_offset_names_one_record_for_ever() -> None:
    clients, final = sound()
    clients[1].reads.insert(1, Seen(0, 1, "b-1"))
    assert set(kinds(clients, final)) == {"rewritten", "backward"}


def test_only_what_was_sent_and_acknowledged_in_between_counts() -> None:
    [client, _], _ = sound()
    assert client.acked_within(2, 5) == 1
    assert client.acked_within(0, 3) == 1
    assert client.acked_within(0, 5) == 2


def test_the_longest_pause_is_that_of_the_partition_that_waited_longest() -> None:
    acks = [Ack(0, 0, 0, 0, 2), Ack(1, 0, 1, 0, 5), Ack(2, 1, 0, 0, 9), Ack(3, 0, 2, 0, 30)]
    client = Client("a", 4, acks)
    assert client.longest_pause_ms(1, 10) == 8
    assert client.longest_pause_ms(4, 10) == 5
    assert Client("b").longest_pause_ms(4, 10) == 6
