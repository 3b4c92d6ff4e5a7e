"""The home of operator subgraphs that run on Spark; it may import queries and nothing else of ours."""
