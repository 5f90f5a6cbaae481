"""Requests on logins, ACLs, users and delegation tokens.

Owns: nothing.
For: the tables of handlers in `api`, and `server`.
"""
