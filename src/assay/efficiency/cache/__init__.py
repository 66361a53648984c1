"""Cache policies: which tokens a growing cache keeps when it may not keep all."""
