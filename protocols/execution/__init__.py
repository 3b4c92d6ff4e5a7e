"""Queries in execution: cut into subgraphs, deployed on peers, wired by flows, restarted as a whole when one is lost."""
