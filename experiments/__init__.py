"""Measurements anyone can repeat, one module per experiment; they may import all of ours but peerd."""
