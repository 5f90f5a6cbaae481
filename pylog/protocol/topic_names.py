"""The characters of topic names.

Owns: nothing.
Invariants: brokers and clients accept the same characters.
Source: org.apache.kafka.common.internals.Topic.
"""

import re

LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
