"""Flows of the console's users, as steps of one of people.py.

Each function starts on the overview, uses visible controls only, and checks the text of the page.
"""

from playwright.sync_api import expect


def create_topic(user, name, partitions=2):
    user.link("Topics")
    user.link("Create a topic")
    user.fill("Name", name)
    user.fill("Partitions (empty: the broker's default)", str(partitions))
    user.button("Create")
    expect(user.page.get_by_role("status").first).to_have_text(f"The topic {name} was created.")


def open_topic(user, name):
    user.link("Topics")
    user.fill("Find a topic", name)
    user.button("Search")
    user.link(name)


def produce(user, topic, text):
    open_topic(user, topic)
    user.link("Produce")
    user.fill("Value", text)
    user.button("Send")
    expect(user.page.get_by_role("status").first).to_contain_text("Sent to partition")


def change_setting(user, topic, name, value):
    open_topic(user, topic)
    user.link("Settings")
    user.fill("Find a setting", name)
    user.button("Search")
    user.link(f"Change {name}")
    user.fill("New value", value)
    user.button("Show the change")
    expect(user.page.locator("ins")).to_have_text(value)
    user.button("Apply")
    expect(user.page.get_by_role("status").first).to_contain_text("were changed")


def search(user, topic, condition, count):
    open_topic(user, topic)
    user.link("Records")
    user.fill("JSON field", condition)
    user.button("Search")
    status = user.page.get_by_role("status").first
    expect(status).to_contain_text("The search is complete")
    expect(user.page.locator("[data-rows] tr")).to_have_count(count)


def download(user, count):
    """Download the records of the search that is open."""
    with user.page.expect_download() as downloading:
        user.button("Download")
    assert len(downloading.value.path().read_text().splitlines()) == count


def copy(user, target, count):
    """Copy the records of the search that is open."""
    user.link("Copy these records to another topic")
    user.fill("Target topic, which must exist", target)
    user.button("Preview")
    user.button("Copy")
    user.page.wait_for_url("**/jobs/*")
    done = user.page.get_by_text(f"{count} records were written, 0 failed.")
    for _ in range(100):
        if done.count():
            break
        user.page.reload()
    expect(done).to_have_count(1)


def follow(user, topic, send):
    """Follow new records until the one that send() produces appears, then pause."""
    open_topic(user, topic)
    user.link("Records")
    user.link("Follow new records")
    user.page.get_by_text("records arrived").wait_for()
    send(b"<b>fresh</b>")
    user.page.get_by_text("<b>fresh</b>").wait_for()
    user.button("Pause")
    expect(user.page.get_by_role("button", name="Continue")).to_be_visible()


def open_group(user, group):
    user.link("Groups")
    user.fill("Search", group)
    user.button("Search")
    user.link(group)


def explain_and_reset(user, group, reason, change="Commit 1 offsets"):
    """Find out why a group lags, and skip all records."""
    open_group(user, group)
    user.link("Why does it lag?")
    expect(user.page.locator("p.notice")).to_contain_text(reason)
    user.link("Change offsets")
    user.check("The end: skip all records")
    user.button("Preview")
    user.button(change)
    expect(user.page.get_by_role("status").first).to_contain_text("were changed")


def delete_topic(user, name):
    open_topic(user, name)
    user.link("Delete the topic")
    user.fill("Type the topic's name to confirm", name)
    user.button(f"Delete {name}")
    expect(user.page.get_by_role("status").first).to_have_text(f"The topic {name} was deleted.")


def log_in(user, name, password):
    user.fill("User", name)
    user.fill("Password", password)
    user.button("Log in")
    expect(user.page.get_by_role("heading", level=1)).to_contain_text("Cluster")


def log_out(user, name):
    user.button(f"Log out {name}")
    expect(user.page.get_by_label("Password")).to_be_visible()
