"""Columns and batches of the client.

Owns: memory of columns and of batches under construction.
For: pylog/client, pylog/tools and the pipeline of spark/.
"""
