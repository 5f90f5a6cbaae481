"""The walks: which functions one Produce and one Fetch visit on the main path, in csrc/.

Owns: nothing.
Invariants: each function of a walk is in its file and calls the functions indented below it; a
  walk has at most the number of moves between files in MOVES_MAX, which only gets smaller.

The main path is one request for one partition, without a session, a quota or a wait. Helpers of
headers and of data structures (timers, slabs, buffers, the bytes of a response) are left out.
"""

import sys
from pathlib import PurePath
from typing import NamedTuple

from tests.checks import c_calls

# A step without a file is in the file of its caller. "..." stands for PRODUCE or FETCH.
NETWORK = """
net/reactor.c reactor_main
  on_event
    net/connection.c connection_on_events
      connection_run
        read_more
          net/receive.c receive_some
        net/requests.c requests_start
          next_frame
            net/frames.c frames_next
          start_request
            start_one
              ...
        send_responses
          net/output.c output_run
          pop_sent
            net/requests.c requests_pop
              net/request_timing.c timing_end
"""
PRODUCE = """
serve/serve.c serve_start
  serve/produce.c produce_start
    serve/produce_request.c produce_parse
    produce_advance
      produce_look_up
        tables/grants.c grants_find
      serve/produce_check.c produce_check
        check_part
          validate
            format/batch.c batch_check
      serve/produce_append.c produce_append
        produce_append_part
          log/log_append.c log_reserve_space
            segment/log_dir.c log_dir_reserve
          log/log_append.c log_append
            log_append_checked
              log_append_admit
                segment/producer_state.c producers_check
              log_append_batch
                log/log_epochs.c log_begin_epoch
                format/batch.c batch_stamp
                log_append_last
                  segment/segment.c segment_pin
                  log_append_write
                  log/log_transactions.c log_update_producer
                    segment/producer_state.c producers_update
                  segment/segment_index.c segment_index_batch
                  log_publish
                    log/log_ends.c log_set_last_stable
                  segment/segment.c segment_unpin
              log/log_waiters.c log_wake_after_append
          log/log_append.c log_unreserve_space
            segment/log_dir.c log_dir_unreserve
      acknowledge
        acknowledged
          log/log_waiters.c log_wait
      produce_respond
        serve/produce_response.c produce_encode
        serve/produce_request.c produce_free
"""
FETCH = """
serve/serve.c serve_start
  serve/fetch.c fetch_start
    serve/fetch_request.c fetch_parse
      fetch_parse_body
        parse_topics
          parse_partition
            serve/fetch_sessions.c fetch_set_part
    serve/fetch_request.c fetch_take_reads
    fetch_advance
      fetch_look_up
        find_topic
          tables/grants.c grants_find
      serve/fetch_read.c fetch_read_all
        read_part
          log/log_read.c log_read_nowait
            log_read_with
              segment/segment.c segment_pin
              log_read_range
                segment/segment_lookup.c segment_find_batch
                segment/segment_scan.c segment_next_corrupt_range
      serve/fetch_batching.c fetch_is_delayed
      serve/fetch_batching.c fetch_take_copies
        serve/shared_reads.c copy_read
          log/log_read.c log_range_read_cached
      serve/fetch_read.c fetch_is_cold
      fetch_respond
        serve/fetch_response.c fetch_encode
          encode_topics
            count
              log/log_stats.c log_count_read
        finish
          serve/fetch_request.c fetch_free
"""


MOVES_MAX = {"Produce": 64, "Fetch": 52}
WALKS = {"Produce": PRODUCE, "Fetch": FETCH}


class Step(NamedTuple):
    """A function on a walk, how deep it is below reactor_main, and its caller."""

    depth: int
    path: PurePath
    function: str
    caller: "Step | None"


def steps(walk: str) -> list[Step]:
    """Return the steps of a walk of WALKS in order."""
    found: list[Step] = []
    callers: list[Step] = []
    for line in _lines(walk):
        depth = (len(line) - len(line.lstrip())) // 2
        file, _, function = line.strip().rpartition(" ")
        del callers[depth:]
        caller = callers[-1] if callers else None
        path = PurePath("csrc", file) if file else caller.path if caller else PurePath()
        callers.append(Step(depth, path, function, caller))
        found.append(callers[-1])
    return found


def _lines(walk: str):
    for line in NETWORK.strip().split("\n"):
        if line.strip() == "...":
            indent = line[:-len("...")]
            yield from (indent + inner for inner in WALKS[walk].strip().split("\n"))
        else:
            yield line


def moves(walk: str) -> int:
    """Return how often the walk goes from one file into another, returns included."""
    return sum(2 for step in steps(walk) if step.caller and step.caller.path != step.path)


def broken(texts: dict[PurePath, str]):
    """Yield (file, message) of each step that is not in csrc/ as listed. texts: path -> content."""
    for walk in WALKS:
        for step in steps(walk):
            if step.function not in c_calls.functions(texts.get(step.path, "")):
                yield str(step.path), f"{walk}: there is no {step.function}()"
            caller = step.caller
            if caller is not None:
                function = c_calls.functions(texts.get(caller.path, "")).get(caller.function)
                if function is not None and step.function not in function.calls:
                    yield str(caller.path), (f"{walk}: {caller.function}() does not call "
                                             f"{step.function}()")
        if moves(walk) > MOVES_MAX[walk]:
            yield "csrc", f"{walk}: {moves(walk)} moves between files, at most {MOVES_MAX[walk]}"


def main() -> int:
    """Print the length of each walk."""
    for walk in WALKS:
        files = {step.path for step in steps(walk)}
        print(f"{walk}: {len(files)} files, {moves(walk)} moves, at most {MOVES_MAX[walk]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
