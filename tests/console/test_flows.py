"""Every flow with the mouse, by keyboard only, without JavaScript; also against Apache Kafka."""

import contextlib
import json

import pytest

from pylog.client import Admin, Producer
from pylog.client.admin.types import NewTopic
from pylog.client.types import TopicPartition
from pylog.testing import Broker
from tests.console import flows
from tests.console.browsers import chromium, page_of
from tests.console.people import Keyboard, Mouse
from tests.console.served import Served
from tests.console.views import test_login

COUNT = 400
MODES = {"mouse": (Mouse, True), "keyboard": (Keyboard, True), "no-javascript": (Mouse, False)}
SHORT = [("brokerd", "keyboard"), ("brokerd", "no-javascript"), ("kafka", "mouse")]
COPY, GROUP = "flow-copy", "flow-group"


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module", params=[
    pytest.param((kind, mode), id=f"{kind}-{mode}", marks=[
        *[pytest.mark.kafka] * (kind == "kafka"),
        *[pytest.mark.slow] * ((kind, mode) not in SHORT)])
    for kind in ("brokerd", "kafka") for mode in MODES])
def variant(request):
    """Return (kind of broker, mode)."""
    return request.param


@pytest.fixture(scope="module")
def address(request, variant):
    """Return the address of a broker with a filled topic and a stuck group."""
    with contextlib.ExitStack() as stack:
        if variant[0] == "brokerd":
            found = stack.enter_context(Broker()).bootstrap
        else:
            found = f"127.0.0.1:{request.getfixturevalue('kafka').port}"
        admin = stack.enter_context(Admin(bootstrap_servers=found))
        topics = ["flow-shop", COPY]
        admin.create_topics([NewTopic(name, 2) for name in topics])
        stack.callback(admin.delete_topics, topics)
        with Producer(bootstrap_servers=found) as producer:
            for i in range(COUNT):
                producer.send("flow-shop", json.dumps({"customer": {"id": i % 50}}).encode(),
                              b"order-%d" % i, partition=i % 2)
        admin.alter_consumer_group_offsets(GROUP, {TopicPartition("flow-shop", 0): 2})
        stack.callback(admin.delete_consumer_groups, [GROUP])
        yield found


@pytest.fixture(scope="module")
def served(address):
    with Served({"test": {"bootstrap.servers": address}}) as one:
        yield one


@pytest.fixture
def user(variant, browser, served):
    """Yield a user on the overview."""
    kind, with_script = MODES[variant[1]]
    with page_of(browser, served, java_script_enabled=with_script) as page:
        page.goto("/")
        yield kind(page)


def test_a_topic_is_created_filled_changed_and_deleted(user, address):
    name = "flow-new"
    flows.create_topic(user, name)
    flows.produce(user, name, "hello")
    flows.change_setting(user, name, "retention.ms", "60000")
    flows.delete_topic(user, name)
    with Admin(bootstrap_servers=address) as admin:
        assert name not in admin.list_topics()


def test_records_are_found_by_a_json_field_downloaded_and_copied(user):
    flows.search(user, "flow-shop", "$.customer.id == 7", COUNT // 50)
    flows.download(user, COUNT // 50)
    flows.copy(user, COPY, COUNT // 50)


def test_a_stuck_group_is_explained_and_reset(user, variant):
    flows.explain_and_reset(user, GROUP, "The group has no members")
    has_history = user.page.get_by_role("link", name="Rebalances").count() > 0
    assert has_history == (variant[0] == "brokerd"), "functions of brokerd are hidden from others"
    assert user.page.locator("[data-stream] dd").nth(2).inner_text() == "0"


def test_new_records_are_followed_until_the_page_is_paused(user, address, variant):
    if variant[1] == "no-javascript":
        flows.open_topic(user, "flow-shop")
        user.link("Records")
        user.link("Follow new records")
        user.link("show the newest records")
        assert user.page.locator("[data-rows] tr").count() == 50
        return
    with Producer(bootstrap_servers=address) as producer:
        flows.follow(user, COPY,
                     lambda value: producer.send(COPY, value).result())


@pytest.mark.parametrize("mode", ["keyboard", "no-javascript"])
def test_a_user_logs_in_and_out(browser, logins, mode):
    kind, with_script = MODES[mode]
    logins.clock.now_s += 61
    with page_of(browser, logins, java_script_enabled=with_script) as page:
        page.goto("/")
        user = kind(page)
        flows.log_in(user, "ann", "ann-password")
        flows.log_out(user, "ann")


@pytest.fixture(scope="module")
def logins():
    with Broker(settings=test_login.SETTINGS) as broker, \
            Served({"test": test_login.cluster(broker)}) as one:
        yield one
