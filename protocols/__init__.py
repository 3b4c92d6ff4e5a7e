"""Pure state machines: one event in, a list of effects out; no clock, socket, file, thread or global randomness."""
