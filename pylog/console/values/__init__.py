"""Values of records that need more than their bytes: schemas, internal topics, chosen formats.

Owns: nothing.
For: the pages and searches of records. Schemas and values are hostile: they are read in a child
process with limits of time and memory; see decoder_process.
"""
