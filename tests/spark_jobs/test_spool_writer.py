"""What is done for runs beside the event loop is done in order, and a failure concerns one run."""

from __future__ import annotations

import errno

from spark_jobs.spool import Writer


def test_jobs_are_done_in_order_and_one_that_fails_is_told_with_its_run():
    done: list[int] = []
    failures: list[tuple[str, str]] = []
    writer = Writer(lambda run, reason: failures.append((run, reason)))

    def full() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    writer.do("a", lambda: done.append(1))
    writer.do("b", full)
    writer.do("a", lambda: done.append(2))
    writer.close()
    assert done == [1, 2]
    assert failures == [("b", "rows could not be handed to Spark: [Errno 28] no space left on device")]
