"""Wrong lines, with the code of the error that mypy must report.

Not run, and not collected: tests/client/test_typing.py checks it. Without the error, mypy reports
that the comment is unused.
"""

from typing import TYPE_CHECKING

import pylog.client
import pylog.testing
from pylog.client import Admin, Consumer, Producer, aio, scan

if TYPE_CHECKING:
    from pylog.client.options import ConsumerConfig


def wrong() -> None:
    Producer(lingr_ms=3)  # type: ignore[call-arg]
    Producer(linger_ms="soon")  # type: ignore[arg-type]
    Producer(acks="most")  # type: ignore[arg-type]
    Producer(group_id="g")  # type: ignore[call-arg]
    Consumer(isolation_level="read")  # type: ignore[arg-type]
    aio.Consumer(grup_id="g")  # type: ignore[call-arg]
    scan("orders", botstrap_servers="h:9092")  # type: ignore[call-arg]
    Admin(bootstrap_servers="h").create_topic("orders")  # type: ignore[attr-defined]
    Admin(bootstrap_servers="h").create_topics(6)  # type: ignore[arg-type]
    pylog.client.Prodcer()  # type: ignore[attr-defined]
    pylog.testing.Brokr()  # type: ignore[attr-defined]
    config: ConsumerConfig = {"fetch.min.byte": 1}  # type: ignore[typeddict-unknown-key]
    print(config)
