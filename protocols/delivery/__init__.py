"""Tuples from publishers to subscribers: acknowledged when they are safe, delivered once, kept until they are read."""
