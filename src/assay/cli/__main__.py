"""`python -m assay.cli`, the same as `assay`."""

from assay.cli import main

main()
