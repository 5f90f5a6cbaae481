"""The jobs of a user: list, progress, report, stop.

Owns: nothing.
Invariants: a user sees only the jobs that the same user of their cluster has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.console.events import event, stream
from pylog.console.records.jobs import RUNNING, Job
from pylog.console.listings import Column, listed
from pylog.console.pages import SESSION, Page, principals_of, redirect
from pylog.console.rendering import bytes_size, number, render

if TYPE_CHECKING:
    from starlette.requests import Request

COLUMNS = [
    Column("id", "Job", is_number=True), Column("title", "Work"), Column("state", "State"),
    Column("share", "Done", is_number=True), Column("records", "Records", is_number=True),
    Column("bytes", "Size", is_number=True), Column("started_ms", "Started", is_number=True)]
UPDATE_S = 1.0


async def jobs(request: Request, cluster: None) -> Response:
    """List the user's jobs."""
    found = request.app.state.console.jobs.visible(principals_of(request))
    rows = [{"id": int(job.id), "title": job.title, "state": job.state, "share": job.share,
             "records": job.records, "bytes": job.bytes, "started_ms": job.started_ms}
            for job in found]
    listing = await listed(request, COLUMNS, rows, search=("title", "state"), sort="-id")
    return listing.response("jobs") or render(request, "jobs.html", listing=listing)


def _job(request: Request) -> Job:
    found: Job = request.app.state.console.jobs.find(request.path_params["job"],
                                                     principals_of(request))
    return found


def progress(request: Request, job: Job) -> str:
    """Return a job's progress as a sentence."""
    seconds = request.app.state.console.jobs.elapsed_s(job)
    rate = f", {job.bytes / 1e6 / seconds:.1f} MB/s" if seconds > 0 else ""
    return (f"{job.state}: {number(job.records)} records, {bytes_size(job.bytes)}{rate}, "
            f"{job.share:.1%} of {number(job.total)} offsets in {seconds:.0f} s.")


async def job(request: Request, cluster: None) -> Response:
    """Show a job."""
    found = _job(request)
    return render(request, "job.html", job=found, text=progress(request, found),
                  is_running=found.state == RUNNING)


async def live(request: Request, cluster: None) -> Response:
    """Stream a job's progress."""
    return stream(request, _events(request, _job(request)))


async def _events(request: Request, found: Job) -> AsyncGenerator[bytes, None]:
    while found.state == RUNNING:
        yield event("progress", {"text": progress(request, found),
                                 "share": f"{found.share:.4f}"})
        await asyncio.sleep(UPDATE_S)
    yield event("done", {"text": f"{progress(request, found)} {' '.join(found.report)}",
                         "more": ""})


async def stop(request: Request, cluster: None) -> Response:
    """Stop a job after the records that it is sending."""
    found = _job(request)
    found.stop()
    return redirect(f"/jobs/{found.id}", "The job stops after the records that it is sending.")


PAGES = [
    Page("/jobs", jobs, changes=False, audit="", scope=SESSION),
    Page("/jobs/{job}", job, changes=False, audit="", scope=SESSION),
    Page("/jobs/{job}/stream", live, changes=False, audit="", scope=SESSION),
    Page("/jobs/{job}/stop", stop, methods=("POST",), changes=False, audit="jobs.stop",
         scope=SESSION),
]
