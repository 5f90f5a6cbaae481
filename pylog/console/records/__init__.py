"""Records: searches and filters, single ones, their texts and masks, the live tail, and copy jobs.

Owns: nothing.
For: the pages of records and of copies; the application counts the searches.
"""
