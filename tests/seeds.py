"""The seed of a test that draws at random.

Every run draws a new one; pytest shows it with a test that fails, and `PEER_SEED=… pytest …` gives it back.
"""

from __future__ import annotations

import os
import secrets


def draw_seed() -> int:
    seed = int(os.environ.get("PEER_SEED") or secrets.randbelow(1 << 32))
    print(f"PEER_SEED={seed}")
    return seed
