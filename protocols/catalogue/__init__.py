"""Streams: their schemas and promises, who publishes to them, and what their tuples look like in numbers."""
