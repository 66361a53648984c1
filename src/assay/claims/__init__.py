"""Published claims as experiments: what must hold exactly, what is expected, what is reported.

One file per claim, in folders named after the rooms, called like its part. `assay claim PART` runs one and writes its
record to `atlas/results/<row>.json`.
"""

from assay.claims.claim import Claim, claim
from assay.claims.evidence import Evidence

__all__ = ["Claim", "Evidence", "claim"]
