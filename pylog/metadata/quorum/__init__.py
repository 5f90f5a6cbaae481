"""Several controllers: the log in etcd or ZooKeeper, elections, the etcd process.

Owns: the connection to the quorum, the etcd process.
For: the metadata services.
"""
