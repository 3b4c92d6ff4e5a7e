"""Subgraphs that run on Spark. It may import queries and nothing else of ours."""
