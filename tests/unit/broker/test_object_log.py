"""ObjectLog: what is read is what was written, wherever a reader begins and however much it takes."""

from anabranch.values import Offset
from support.broker_bench import in_loop
from support.object_world import ObjectWorld, batch, offsets_in

END = Offset(2**62)


@in_loop
async def test_records_of_a_stored_object_are_read_with_their_offsets() -> None:
    world = ObjectWorld()
    world.write({0: [batch(b"a", b"b"), batch(b"c")]})
    world.write({0: [batch(b"d")]})
    part = world.log().slice(Offset(0), 10_000, END)
    assert part.missing
    part = await world.log().loaded(Offset(0), 10_000, END)
    assert offsets_in(part.read()) == [0, 2]
    part = await world.log().loaded(Offset(3), 10_000, END)
    assert offsets_in(part.read()) == [3]
    assert offsets_in(world.log().slice(Offset(1), 10_000, END).read()) == [0, 2, 3]
