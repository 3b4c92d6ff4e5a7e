"""Any sequence of appends, commits, full disks, kills, crashes and recoveries keeps all that was synced, in order."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.protocols.journal.faulty_disk import FaultyDiskMachine

TestFaultyDisk = pytest.mark.slow(FaultyDiskMachine.TestCase)
TestFaultyDisk.settings = settings(max_examples=150, stateful_step_count=40)
