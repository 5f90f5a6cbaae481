"""Searches of records, their filters and short texts, the live tail, and jobs that copy them.

Owns: nothing.
For: the pages of records and of copies; the application counts the searches.
"""
