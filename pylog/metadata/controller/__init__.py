"""The active controller: orders decisions and makes them.

Owns: the order of decisions, the sessions of brokers.
For: the metadata services and `api`. Decisions are pure functions of an image.
"""
