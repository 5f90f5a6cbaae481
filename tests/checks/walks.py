"""The walks: which functions one request visits on its main path. Produce and Fetch are in csrc/,
JoinGroup and CreateTopics, which run on the event loop, in pylog/.

Owns: nothing.
Invariants: each function of a walk is in its file and calls the functions indented below it; a
  walk has at most the number of moves between files in MOVES_MAX, which only gets smaller.

The main path is one request for one partition, without a session, a quota or a wait: the first
member of a new group, whose join phase ends at once; one topic with one partition, on a broker that
is its own controller. Helpers of headers and of data structures (timers, slabs, buffers, images,
the bytes of a record or a response) are left out.

A step with `*` is called through a table, a callback or a queue; only its function is checked. A
step without a caller is called by the event loop.
"""

import ast
import functools
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
          log/log_append.c log_append_for_clients
            segment/log_dir.c log_dir_reserve
            log_append_batches
              log_append_next
                log_append_begin
                  log_append_admit
                    segment/producer_state.c producers_check
                log_append_stamp
                  format/batch.c batch_stamp
                log_append_write_parts
                  log_append_write
                log_append_record
                  log/log_transactions.c log_update_producer
                    segment/producer_state.c producers_update
                  segment/segment_index.c segment_index_batch
                  log_publish
                    log/log_ends.c log_set_last_stable
              log/log_waiters.c log_wake_after_append
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
          log/log_read.c log_read
            log_read_find
              log_read_range
                segment/segment_lookup.c segment_find_batch
                segment/segment_scan.c segment_next_corrupt_range
      serve/fetch_batching.c fetch_delay_response
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

EVENT_LOOP = """
server/request_queue.py drain
  _run_slice
    _poll
    server/request_runner.py run
      server/request_forwarder.py takes
      _handle
        _handler
        server/request_decoder.py decode
          protocol/codec.py decode_request
        ...
"""
JOIN_GROUP = """
*api/groups/classic.py join_group
  coordinator/runtime/runtime.py run
    _find
      _at
        coordinator/runtime/shard.py error
    _run
      *coordinator/groups/shard.py join
        coordinator/groups/state/group_store.py find
          *coordinator/groups/snapshot.py find
        coordinator/groups/classic/protocol.py join
          join_fault
          coordinator/groups/state/group_store.py make
          coordinator/groups/state/classic_group.py supports
          _join_new
            _add_member
              coordinator/groups/state/classic_group.py add
              coordinator/groups/state/rebalance_tracker.py because
              _await_join
              _rebalance_or_complete
                _rebalance
                  coordinator/groups/state/classic_group.py move
          coordinator/groups/state/group_store.py record_group
            coordinator/groups/state/classic_records.py group_value
      _write
        coordinator/runtime/journal.py write
*server/request_runner.py _respond_deferred
  server/response_sender.py respond_deferred
    coordinator/runtime/deferred_response.py then
eventloop/end_of_tick.py end
  *coordinator/runtime/journal.py _append
    _start_flush
coordinator/runtime/runtime.py _tick
  _step
    *coordinator/groups/shard.py tick
      coordinator/groups/classic/protocol.py due
        *_join_is_due
          _complete_join
            coordinator/groups/state/classic_group.py elect
            coordinator/groups/state/classic_group.py next_generation
            _joined
            _respond_to_join
              _respond
    _write
      coordinator/runtime/journal.py after
coordinator/runtime/runtime.py _woken
  coordinator/runtime/journal.py woken
    _await_flush
      _flushed
        _release
          *coordinator/runtime/deferred_response.py respond
            *server/response_sender.py respond
              protocol/codec.py response_frame
              _queue
"""
CREATE_TOPICS = """
*_respond_when_done
  server/request_tasks.py start
    supervisor.py reporting
*server/response_sender.py respond_when_done
  *api/cluster/topics.py create_topics
    config/client_quotas.py mutations
    metadata/controller/active_controller.py create_topics
      metadata/controller/partitions/topic_branches.py split_branches
      eventloop/slices.py in_slices
        *metadata/controller/partitions/topics.py create_topics
          _create_topic
            topic_name_fault
            _topic_configs
              config/settings.py validate_topic_configs
                config/topics.py validate_topic_configs
            _assignment
              metadata/controller/partitions/replica_placement.py place
            partition_records
      metadata/controller/decision_queue.py _tried
        _commit
metadata/controller/decision_queue.py _append
  *_appended
    metadata/image/loader.py fold
      metadata/image/image.py advance
    metadata/log/local_log.py append
      values_of
        metadata/image/snapshot.py encoded
  metadata/image/loader.py push
server/metadata_publisher.py run
  metadata/image/loader.py take
  _apply
    _apply_topics
      *_apply_logs
        metadata/service.py local_roles
        log/manager.py create
          log/log_directories.py least_loaded
          _open
            log/partition_logs.py open_checked
              open_log
            log/topic_logs.py publish
*server/response_sender.py respond
  protocol/codec.py response_frame
  _queue
"""


MOVES_MAX = {"Produce": 54, "Fetch": 50, "JoinGroup": 62, "CreateTopics": 56}
WALKS = {"Produce": PRODUCE, "Fetch": FETCH, "JoinGroup": JOIN_GROUP, "CreateTopics": CREATE_TOPICS}
IN_PYTHON = ("JoinGroup", "CreateTopics")


class Step(NamedTuple):
    """A function on a walk, how deep it is below reactor_main, and its caller."""

    depth: int
    path: PurePath
    function: str
    caller: "Step | None"
    is_direct: bool = True


def steps(walk: str) -> list[Step]:
    """Return the steps of a walk of WALKS in order."""
    found: list[Step] = []
    callers: list[Step] = []
    for line in _lines(walk):
        depth = (len(line) - len(line.lstrip())) // 2
        file, _, function = line.strip().lstrip("*").rpartition(" ")
        del callers[depth:]
        caller = callers[-1] if callers else None
        root = "pylog" if walk in IN_PYTHON else "csrc"
        path = PurePath(root, file) if file else caller.path if caller else PurePath()
        callers.append(Step(depth, path, function, caller, not line.strip().startswith("*")))
        found.append(callers[-1])
    return found


def _lines(walk: str):
    lines = WALKS[walk].strip().split("\n")
    # What the event loop calls after the handler returned.
    later = next((index for index, line in enumerate(lines) if index and line[0] != " "),
                 len(lines)) if walk in IN_PYTHON else len(lines)
    for line in (EVENT_LOOP if walk in IN_PYTHON else NETWORK).strip().split("\n"):
        if line.strip() == "...":
            indent = line[:-len("...")]
            yield from (indent + inner for inner in lines[:later])
        else:
            yield line
    yield from lines[later:]


def moves(walk: str) -> int:
    """Return how often the walk goes from one file into another, returns included."""
    return sum(2 for step in steps(walk) if step.caller and step.caller.path != step.path)


def broken(texts: dict[PurePath, str]):
    """Yield (file, message) of each step that is not there as listed. texts: path -> content."""
    for walk in WALKS:
        for step in steps(walk):
            if step.function not in _calls(step.path, texts):
                yield str(step.path), f"{walk}: there is no {step.function}()"
            caller = step.caller
            if caller is not None and step.is_direct:
                calls = _calls(caller.path, texts).get(caller.function)
                if calls is not None and step.function not in calls:
                    yield str(caller.path), (f"{walk}: {caller.function}() does not call "
                                             f"{step.function}()")
        if moves(walk) > MOVES_MAX[walk]:
            root = "pylog" if walk in IN_PYTHON else "csrc"
            yield root, f"{walk}: {moves(walk)} moves between files, at most {MOVES_MAX[walk]}"


def _calls(path: PurePath, texts: dict[PurePath, str]) -> dict[str, set[str]]:
    """Return function name -> names that the function calls (C) or uses (Python)."""
    return _calls_of(path.suffix, texts.get(path, ""))


@functools.cache
def _calls_of(suffix: str, text: str) -> dict[str, set[str]]:
    if suffix != ".py":
        return {name: set(function.calls) for name, function in c_calls.functions(text).items()}
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            used = found.setdefault(node.name, set())
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name):
                    used.add(inner.id)
                elif isinstance(inner, ast.Attribute):
                    used.add(inner.attr)
    return found


def main() -> int:
    """Print the length of each walk."""
    for walk in WALKS:
        files = {step.path for step in steps(walk)}
        print(f"{walk}: {len(files)} files, {moves(walk)} moves, at most {MOVES_MAX[walk]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
