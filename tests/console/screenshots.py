"""Pictures of the console's pages for the docs: python -m tests.console.screenshots FOLDER.

A broker with orders, payments and their consumers is the real data behind them.
"""

import json
import random
import sys
import time
from pathlib import Path

from pylog.client import Consumer, Producer
from pylog.testing import Broker
from tests.console.browsers import chromium, page_of
from tests.console.served import Served

SIZE = {"width": 1200, "height": 760}
ORDERS = 5000
MINUTES = 8  # Of lag samples.
PAGES = {
    "overview": "/", "brokers": "/brokers", "topics": "/topics", "topic": "/topics/orders",
    "records": "/topics/orders/records?json=$.customer.country+==+%22PT%22&limit=20",
    "record": "/topics/orders/records/0/12", "produce": "/topics/orders/produce",
    "settings": "/topics/orders/settings?q=retention", "groups": "/groups",
    "group": "/groups/billing"}
COUNTRIES = ("DE", "FR", "PT", "SE", "US")


def fill(broker: Broker) -> None:
    """Create topics, records and groups that lag."""
    chosen = random.Random(7)
    for name, partitions in (("orders", 4), ("payments", 2), ("shipments", 2), ("audit", 1)):
        broker.create_topic(name, partitions=partitions)
    with Producer(bootstrap_servers=broker.bootstrap, compression_type="zstd") as producer:
        for number in range(ORDERS):
            order = {"order": 9_007_199_254_740_993 + number,
                     "customer": {"id": chosen.randrange(900), "country":
                                  chosen.choice(COUNTRIES)},
                     "total": f"{chosen.uniform(5, 400):.2f}"}
            producer.send("orders", json.dumps(order).encode(),
                          f"customer-{order['customer']['id']}".encode(),
                          headers=[("trace", f"{number:08x}".encode())])
            if number % 3 == 0:
                producer.send("payments", json.dumps({"order": order["order"]}).encode())
    for group, topic, count in (("billing", "orders", 1200), ("mail", "orders", ORDERS),
                                ("fraud-check", "payments", 300)):
        with Consumer(bootstrap_servers=broker.bootstrap, group_id=group,
                      auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            seen = 0
            for batch in iter(lambda: consumer.poll(10, 500), []):
                seen += len(batch)
                if seen >= count:
                    break
            consumer.commit()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with Broker() as broker:
        fill(broker)
        settings = {"bootstrap.servers": broker.bootstrap}
        with Served({"production": settings}, console_lag_interval_ms=200) as served, \
                chromium() as browser:
            served.clock.now_s = broker.clock.now_ms() / 1000 - MINUTES * 60
            for _ in range(MINUTES):
                served.clock.now_s += 60
                broker.topic("orders").append(*[b"{}"] * 35)
                while served.console.lag_histories["production"].read_ms != served.clock.now_ms():
                    time.sleep(0.05)
            for theme in ("light", "dark"):
                with page_of(browser, served, viewport=SIZE, color_scheme=theme) as page:
                    for name, path in PAGES.items():
                        answer = page.goto(path)
                        assert answer.status == 200, (path, answer.status)
                        page.screenshot(path=folder / f"{name}-{theme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
