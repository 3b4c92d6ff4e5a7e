"""Replicated keyed entries: the R peers nearest to a key hold what the network knows under it."""
