"""What to do when records that were to be read are gone: stop, or say so and go on (`failOnDataLoss`)."""

import logging
from dataclasses import dataclass

from anabranch.errors import DataLossError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LossPolicy:
    is_fatal: bool

    def report(self, what: str) -> None:
        """`what` is a sentence without its end. Returns only if the reader may go on with what is there."""
        if self.is_fatal:
            raise DataLossError(
                f"{what}. Start anew from what is there (another checkpoint, or startingOffsets), or set "
                "failOnDataLoss=false to go on without these records."
            )
        logger.warning("records are lost, and failOnDataLoss=false lets us go on: %s", what)
