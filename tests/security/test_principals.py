"""Principals and their numbers in reactors."""

from pylog.security import principals
from pylog.security.principals import ANONYMOUS, GONE, Identities, user


def test_connections_of_one_principal_share_a_number():
    known = Identities()
    one, other = known.bind_connection(1, user("a"), "h1"), known.bind_connection(2, user("a"),
                                                                                  "h2")
    assert one == other != known.bind_connection(3, user("b"), "h1") and one > 0
    assert known.principal(one) == user("a") and known.principal(0) == ANONYMOUS
    assert known.host(2) == "h2" and known.is_current(1, one) and not known.is_current(3, one)


def test_a_number_ends_with_its_last_connection():
    known = Identities()
    number = known.bind_connection(1, user("a"), "h")
    known.bind_connection(2, user("a"), "h")
    known.leave(1)
    assert known.principal(number) == user("a")
    known.leave(2)
    known.leave(2)
    assert known.principal(number) is GONE
    assert known.bind_connection(3, user("b"), "h") != number


def test_reauthentication_keeps_the_principal_number():
    known = Identities()
    assert known.bind_connection(1, user("a"), "h") == known.bind_connection(1, user("a"), "h")
    known.leave(1)
    assert not known._by_number and not known._by_key


def test_addresses_get_separate_numbers_if_relevant():
    known = Identities()
    one = known.bind_connection(1, user("a"), "h1")
    known.bind_connection(2, user("a"), "h2")
    changed = dict(known.set_by_host(True))
    assert changed.keys() == {1, 2} and len({*changed.values(), one}) == 3
    assert not known.is_current(1, one) and known.is_current(1, changed[1])
    assert dict(known.set_by_host(True)) == {}
    assert len(set(dict(known.set_by_host(False)).values())) == 1


def test_requests_in_progress_keep_their_principal_when_addresses_become_relevant():
    known = Identities()
    one = known.bind_connection(1, user("a"), "h1")
    known.bind_connection(2, user("a"), "h2")
    by_host = dict(known.set_by_host(True))
    assert {known.principal(number) for number in (one, *by_host.values())} == {user("a")}
    assert dict(known.set_by_host(False)) == {1: one, 2: one}
    assert dict(known.set_by_host(True)) == by_host
    assert known.bind_connection(1, user("a"), "h1") == by_host[1]
    assert [known.principal(number) for number in by_host.values()] == [user("a")] * 2
    known.leave(1)
    assert known.principal(by_host[1]) is GONE and known.principal(one) == user("a")
    known.leave(2)
    assert not known._by_number and not known._by_key


def test_used_numbers_are_skipped_after_wraparound(monkeypatch):
    monkeypatch.setattr(principals, "NUMBER_MAX", 3)
    known = Identities()
    assert [known.bind_connection(number, user(str(number)), "h") for number in (1, 2)] == [1, 2]
    known.leave(1)
    assert [known.bind_connection(number, user(str(number)), "h") for number in (3, 4)] == [3, 1]


def test_names_of_principals_are_read():
    assert principals.parse("User:a:b") == user("a:b")
    assert [principals.parse(text) for text in ("", "a", ":a", "User:")] == [None] * 4


def test_closed_connections_number_has_no_permissions():
    """A long request continues after its client disconnected: not with the permissions of
    ANONYMOUS.
    """
    from types import SimpleNamespace

    from pylog.config import Settings
    from pylog.protocol import api
    from pylog.security.authorization.access import Access
    from pylog.security.authorizer import CLUSTER, DELETE, READ, TOPIC, StandardAuthorizer

    known = Identities()
    access = Access(StandardAuthorizer(Settings({
        "super.users": "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true"})), known)
    context = SimpleNamespace(
        principal=known.bind_connection(1, user("a"), "h"), peer_host="h",
        api_key=api.DELETE_TOPICS)
    assert access.may(context, DELETE, TOPIC, "t") and access.operations(context, CLUSTER, "c")
    known.leave(1)
    assert not access.may(context, DELETE, TOPIC, "t")
    assert not access.may_somewhere(context, READ, TOPIC)
    assert access.operations(context, CLUSTER, "c") == 0


def test_numbers_of_enveloped_principals_are_released():
    known = Identities()
    first, again = known.acquire(user("a"), "h"), known.acquire(user("a"), "h")
    assert first == again == known.bind_connection(5, user("a"), "h")
    known.release(first)
    known.leave(5)
    assert known.principal(first) == user("a")
    known.release(again)
    assert known.principal(first) is GONE
