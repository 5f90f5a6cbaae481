"""A schema registry with Confluent's REST interface on the topic `_schemas`.

Owns: nothing.
Invariants: the topic is the only store: a change is answered after it was written to all in-sync
  replicas and read back; the registry reaches the cluster only through pylog.client; every module
  except `http`, `topic`, `access` and `serving` is free of I/O.

`serving.serve()` runs a registry; `pylog registry serve` and brokerd's child process call it. The
package of the extra `registry` is needed.

    http -> routes -> registry -> store <- topic
                         |
              formats, compatibility, contracts
"""
