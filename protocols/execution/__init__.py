"""Queries in execution: cut into subgraphs, deployed on peers, wired by flows, started anew when a host is lost."""
