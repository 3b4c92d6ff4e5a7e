"""Query text in, typed plan out. Pure: it imports nothing else of ours."""
