import os
import socket
import threading

from pylog.testing import links

HOST = "127.201.7.1"


def listening():
    made = socket.create_server((HOST, 0))
    return made, made.getsockname()


def hears(one, other) -> bool:
    """Return True if data sent on one end arrives at the other."""
    other.settimeout(0.2)
    one.send(b"x")
    try:
        return other.recv(1) == b"x"
    except TimeoutError:
        return False


def deaf_rules(address):
    rules = links.Rules()
    rules.dialled.add(address)
    rules.listeners.add(address)
    return rules


def test_cut_link_blocks_the_dialling_side_until_healed():
    listener, address = listening()
    with listener, socket.create_connection(address) as client, listener.accept()[0] as server:
        links.apply(deaf_rules(address), "127.201.7.")
        assert hears(client, server) and not hears(server, client)
        links.apply(links.Rules(), "127.201.7.")
        client.settimeout(20)
        assert client.recv(1) == b"x"


def test_connection_opened_during_a_cut_is_cut(monkeypatch):
    """A follower that connects to its leader at that moment, on another thread."""
    listener, address = listening()
    made = []

    def listed_late(path):
        found = os.listdir(path)
        if not made:
            # The first one may reuse the descriptor of the list itself.
            dialling = threading.Thread(target=lambda: made.extend(
                socket.create_connection(address, 5) for _ in range(3)))
            dialling.start()
            dialling.join()
        return found

    with listener:
        monkeypatch.setattr(links, "listdir", listed_late)
        links.apply(deaf_rules(address), "127.201.7.")
        for client in made:
            with client, listener.accept()[0] as server:
                assert hears(client, server) and not hears(server, client)
