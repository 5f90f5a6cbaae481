"""Clicks and seconds of a new user, who follows visible links only: python -m
tests.console.first_use.

Owns: one broker, one console and one browser.
"""

import json
import time

from pylog.client import Admin, Producer
from pylog.client.admin.types import NewTopic
from pylog.client.types import TopicPartition
from pylog.testing import Broker
from tests.console import flows
from tests.console.browsers import chromium, page_of
from tests.console.people import Mouse
from tests.console.served import Served

RECORDS, GROUPS = 20_000, 200
SECONDS_MAX = 60


def fill(broker):
    """Create orders, and groups of which one is stuck."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 4), NewTopic("orders-copy", 4)])
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", json.dumps({"id": number}).encode(), partition=number % 4)
        for number in range(GROUPS):
            admin.alter_consumer_group_offsets(
                f"service-{number}", {TopicPartition("orders", 0): 1})


def find(user):
    flows.search(user, "orders", "$.id == 1234", 1)


def reset(user):
    flows.explain_and_reset(user, "service-7", "The group has no members")


def copy(user):
    flows.open_topic(user, "orders")
    user.link("Records")
    user.open("More conditions")
    user.fill("From offset", "100")
    user.fill("Before offset", "110")
    user.button("Search")
    found = user.page.locator("[data-rows] tr").count()
    flows.copy(user, "orders-copy", found)


TASKS = {"find one record by a JSON field": find, "explain a stuck group and reset it": reset,
         "copy a range to another topic": copy}


def main():
    with Broker() as broker:
        fill(broker)
        with Served({"production": {"bootstrap.servers": broker.bootstrap}},
                    console_lag_interval_ms=10_000) as served, chromium() as browser:
            for name, task in TASKS.items():
                with page_of(browser, served) as page:
                    page.goto("/")
                    user, began_s = Mouse(page), time.monotonic()
                    task(user)
                    seconds = time.monotonic() - began_s
                print(f"{name:<38}{user.actions:>4} clicks and fields{seconds:>8.1f} s  at most "
                      f"{SECONDS_MAX} s: {'met' if seconds <= SECONDS_MAX else 'MISSED'}")


if __name__ == "__main__":
    main()
