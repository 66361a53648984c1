"""Readers: what of a cache is read."""
