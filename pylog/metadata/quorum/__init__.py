"""Several controllers: the log in etcd or ZooKeeper, elections, etcd's process.

Owns: the connection to the quorum, etcd's process.
For: the metadata services.
"""
