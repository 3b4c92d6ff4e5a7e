"""Query text in, typed plan out; pure, and nothing of ours is imported here."""
