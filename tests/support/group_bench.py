"""One group driven by hand: time moves when told, saves succeed unless held back, answers are collected."""

import itertools
from typing import Any

from anabranch.coordination.groups.classic_group import ClassicGroup
from anabranch.coordination.groups.group_memory import GroupMemory
from anabranch.coordination.groups.messages import Answer, Effect, JoinRequest, Now, Save, SyncRequest
from anabranch.coordination.groups.records import read_group
from anabranch.coordination.groups.settings import GroupSettings
from anabranch.wire.consumer_protocol import encode_subscription

WALL_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str, version: int = 1) -> bytes:
    return encode_subscription(version, {"topics": list(topics)})


RANGE = (("range", subscription("orders")),)


def join_request(member_id: str = "", **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "group_id": "g",
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": RANGE,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "client_id": "app",
        "client_host": "/127.0.0.1",
        "version": 3,
    }
    return JoinRequest(**{**values, **changes})


class Bench:
    def __init__(self, *, delay_ms: int = 100, saves: bool = True, **settings: Any) -> None:
        self.now = Now(0, WALL_MS)
        self.settings = GroupSettings(initial_rebalance_delay_ms=delay_ms, **settings)
        self.memory = GroupMemory(self.settings.memory_bytes_max)
        ids = itertools.count(1)
        self.group = ClassicGroup("g", self.settings, lambda: f"id{next(ids)}", self.now, self.memory)
        self.answers: dict[str, Any] = {}
        self.saves: list[Save] = []
        self.held: list[Save] = []
        self._save_at_once = saves

    def after(self, milliseconds: int) -> None:
        """Let time pass, stopping at every deadline on the way."""
        end_ms = self.now.ms + milliseconds
        while (next_ms := self.group.next_deadline_ms()) is not None and next_ms <= end_ms:
            self._move_to(next_ms)
            self.take(self.group.tick(self.now))
        self._move_to(end_ms)

    def join(self, waiter: str, member_id: str = "", **changes: Any) -> Any:
        """The answer if there is one already."""
        self.take(self.group.join(join_request(member_id, **changes), waiter, self.now))
        return self.answers.get(waiter)

    def sync(self, waiter: str, member_id: str, generation: int | None = None, **changes: Any) -> Any:
        generation = self.group.generation if generation is None else generation
        request = SyncRequest("g", member_id, generation, **changes)
        self.take(self.group.sync(request, waiter, self.now))
        return self.answers.get(waiter)

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, instance_id, generation, self.now)

    def finish_save(self, error: Exception | None = None) -> None:
        save = self.held.pop(0)
        if error is None:
            self.take(self.group.on_saved(save.saved, self.now))
        else:
            self.take(self.group.on_save_failed(save.saved, error, self.now))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.waiter not in self.answers, "a request is answered once"
                self.answers[str(effect.waiter)] = effect.outcome
            else:
                self.saves.append(effect)
                self.held.append(effect)
                if self._save_at_once:
                    self.finish_save()

    def stable(self, *names: str, **changes: Any) -> dict[str, str]:
        """A settled group of these members, by name; who is named like `static-x` is instance `static-x`."""
        for name in names:
            instance_id = name if name.startswith("static") else None
            self.join(name, instance_id=instance_id, **changes)
        self.after(self.settings.initial_rebalance_delay_ms * (len(names) + 1))
        ids = {name: self.answers[name].member_id for name in names}
        given = tuple((member_id, name.encode()) for name, member_id in ids.items())
        leader = self.group.roster.leader
        for name, member_id in ids.items():
            self.sync(f"{name}-sync", member_id, assignments=given if member_id == leader else ())
        return ids

    def last_saved(self) -> Any:
        value = self.saves[-1].record[1]
        assert value is not None
        return read_group(value)

    def _move_to(self, milliseconds: int) -> None:
        self.now = Now(milliseconds, WALL_MS + milliseconds)
