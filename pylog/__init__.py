"""pylog: a commit-log broker that implements Apache Kafka's wire protocol."""

__version__ = "0.1.0"
# See installation.py.
__distribution__ = "pylog-broker"
