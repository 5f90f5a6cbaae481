"""The active controller: the order of decisions, and the decisions.

Owns: the order of decisions, the sessions of brokers.
For: the metadata services and `api`. Decisions are pure functions on an image.
"""
