"""Streams shared between queries: a stream comes to a host once, each reader there has a tap on it (decision 51)."""
