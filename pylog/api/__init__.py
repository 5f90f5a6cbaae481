"""The APIs that Python handles: one class per API family in the folders below. `registry` creates
the handlers of brokers, `controller_registry` those of controller listeners. Other packages import
these two, the types in `handler`, and what a family declares for them.

Owns: nothing.
Invariants: errors of a request are values in its response.
"""
