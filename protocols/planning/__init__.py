"""IFLOW: join order, places and reuse of what flows already, decided together."""
