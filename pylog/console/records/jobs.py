"""Long work that continues while its page is closed, such as copies of records.

Owns: the running jobs, and the newest ended ones.
Invariants: a job is visible only to the user of its cluster who started it; the numbers of running
  and of remembered jobs, and the lines of a report, are bounded; a job is done only if nothing is
  missing from its result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping

from pylog import supervisor
from pylog.client.errors import KafkaError
from pylog.console.pages import PageError

RUNNING, DONE, INCOMPLETE, STOPPED, FAILED = (
    "running", "done", "incomplete", "stopped", "failed")
RUNNING_MAX, ENDED_JOBS_MAX = 8, 200
REPORT_LINES_MAX = 100


class Job:
    """One job. total: offsets to read, an upper limit of its records. report: lines at its end.
    is_incomplete: something is missing from its result; the report names it.
    """

    def __init__(self, id_: str, title: str, principal: str, cluster: str, total: int,
                 started_ms: int, started_s: float):
        self.id = id_
        self.title = title
        self.principal = principal
        self.cluster = cluster
        self.total = total
        self.started_ms = started_ms
        self.started_s = started_s
        self.ended_ms = -1
        self.seconds = 0.0
        self.state = RUNNING
        self.read = 0  # Offsets that it has passed.
        self.records = 0
        self.bytes = 0
        self.report: list[str] = []
        self.is_stopping = self.is_incomplete = False
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End the job after the records that it is sending now."""
        self.is_stopping = True

    def miss(self, text: str) -> None:
        """Report something that is missing from the result."""
        self.is_incomplete = True
        if len(self.report) < REPORT_LINES_MAX:
            self.report.append(text)
        elif len(self.report) == REPORT_LINES_MAX:
            self.report.append("There is more; only the first lines are shown.")

    @property
    def share(self) -> float:
        return min(1.0, self.read / self.total) if self.total else 1.0


class Jobs:
    """The jobs of a console. seconds: a monotonic clock."""

    def __init__(self, now_ms: Callable[[], int], seconds: Callable[[], float]):
        self._now_ms = now_ms
        self._seconds = seconds
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)

    def visible(self, principals: Mapping[str, str]) -> list[Job]:
        """Return a user's jobs, the newest first. principals: the user's name by cluster. The same
        name may be somebody else in another cluster.
        """
        return [job for job in reversed(self._jobs.values())
                if principals.get(job.cluster) == job.principal]

    def find(self, id_: str, principals: Mapping[str, str]) -> Job:
        """Return a user's job. Raises PageError."""
        job = self._jobs.get(id_)
        if job is None or principals.get(job.cluster) != job.principal:
            raise PageError(404, "There is no such job", id_[:100],
                            "The console may have been restarted: it forgets jobs then.")
        return job

    def start(self, title: str, principal: str, cluster: str, total: int,
              work: Callable[[Job], Awaitable[None]]) -> Job:
        """Start a job. Raises PageError if too many run."""
        running = sum(job.state == RUNNING for job in self._jobs.values())
        if running >= RUNNING_MAX:
            raise PageError(429, "Too many jobs are running", str(running),
                            "Wait until one ends, or stop one.")
        job = Job(str(next(self._numbers)), title, principal, cluster, total, self._now_ms(),
                  self._seconds())
        self._jobs[job.id] = job
        for old in [old for old in self._jobs.values() if old.state != RUNNING][
                :max(0, len(self._jobs) - ENDED_JOBS_MAX)]:
            del self._jobs[old.id]
        job.task = asyncio.create_task(supervisor.reporting("console", self._run(job, work)))
        return job

    async def _run(self, job: Job, work: Callable[[Job], Awaitable[None]]) -> None:
        try:
            await work(job)
            job.state = STOPPED if job.is_stopping else INCOMPLETE if job.is_incomplete else DONE
        except (KafkaError, PageError) as failure:
            job.state = FAILED
            job.report.append(str(failure) or type(failure).__name__)
        except asyncio.CancelledError:
            job.state = STOPPED
            job.report.append("The console was shut down.")
            raise
        except Exception:
            job.state = FAILED
            job.report.append("The job failed because of a bug in the console. Its log has the "
                              "details.")
            supervisor.report("console", "a job failed", title=job.title)
        finally:
            job.ended_ms = self._now_ms()
            job.seconds = self._seconds() - job.started_s

    def elapsed_s(self, job: Job) -> float:
        return job.seconds if job.state != RUNNING else self._seconds() - job.started_s

    async def close(self) -> None:
        """Cancel all running jobs."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
