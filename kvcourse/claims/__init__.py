"""The ledger: every claim of the article that this course grew from, what it said, and what we measure.

Each module holds the rows of one part of the course. `measure` computes a row's numbers anew where that takes
seconds; what took longer (quality after training, speed, served requests) is read from the results that `kvcourse
bench` left in `kvcourse.results`, with the machine and the date.
"""

from kvcourse.claims import foundations, heads, latent, paging, quality, speed
from kvcourse.claims.claim import Claim
from kvcourse.errors import InputError

__all__ = ["CLAIMS", "Claim", "get"]

CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (*foundations.ROWS, *heads.ROWS, *quality.ROWS, *speed.ROWS, *latent.ROWS, *paging.ROWS),
        key=lambda claim: claim.number,
    )
)


def get(number: int) -> Claim:
    """The row with this number. Errors: InputError when there is none (yet)."""
    for claim in CLAIMS:
        if claim.number == number:
            return claim
    known = ", ".join(str(claim.number) for claim in CLAIMS)
    raise InputError(f"no claim {number}: this release has rows {known}")
