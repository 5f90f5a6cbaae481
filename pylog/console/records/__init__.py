"""Searches of records, their filters and short texts, the live tail, and copies.

Owns: nothing.
For: the pages of records and of copies; the application counts the searches.
"""
