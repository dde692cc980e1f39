"""The form of a partition: where its records are. A topic's mode says which form its partitions shall have; while that
is being changed, each goes over by itself, and until then has the form it had.

    kept      in logs of its own on the brokers of its placement, one or several
    stored    in the object store; every broker serves it
    branched  on each side of a split (mode branch); every broker has it open

A kept partition that goes over to the store has its records copied there first, so that nothing is left on any disk.
One that comes back from it leaves its records there: brokers keep what is written from then on, and below its *floor*
the partition is read from the store. So there is never more than one seam, and the older records lie in the store.
One that goes over to branches takes its logs along: they are the first lane; what is in the store comes there by way of
brokers that keep it, and its floor stays. One that comes back joins the lanes of its
only line into logs again, once every broker has promised to open no branch more.
"""

from collections.abc import Sequence

KEPT, STORED, BRANCHED = "kept", "stored", "branched"
Forms = tuple[str, ...]

OBJECT, BRANCH = "object", "branch"
"""The modes whose topics are placed on no brokers in particular."""


MODE_OF_FORM = {STORED: OBJECT, BRANCHED: BRANCH}


def form_in(mode: str | None) -> str:
    """The form that the partitions of a topic in this mode shall have."""
    return next((form for form, its in MODE_OF_FORM.items() if its == mode), KEPT)


def files_go_along(before: str, after: str) -> bool:
    """Whether a partition whose residence changes takes the files of its logs along."""
    return (before, after) in ((KEPT, BRANCHED), (BRANCHED, KEPT), (BRANCHED, BRANCHED))


def settled(forms: Sequence[str], mode: str | None) -> Forms:
    """What a topic says of its partitions' forms: nothing, if all of them are as its mode says."""
    wanted = form_in(mode)
    return () if all(form == wanted for form in forms) else tuple(forms)
