"""StreamGlobe (Kuntschke, Kemper: Data Stream Sharing, 2006): matching, search, capacity, and the paper's experiments.

Pure, and meant for the peers that are to share streams: `shapes.py`, `windows.py`, `residual.py`, `capacity.py` and
`trees.py`. `match.py` and `subscribe.py` are the paper's algorithms as printed; `world.py` is its set-up.
"""
