"""A name with several addresses, some of which are unreachable."""

import asyncio
import socket

import pytest

from pylog.client.config.settings import Settings
from pylog.client.network import dns
from pylog.client.network.dns import reached

WAIT_S = 0.4
SWALLOWS, REFUSES, ODD = "192.0.2.1", "127.0.0.9", 999


def used(monkeypatch, *hosts):
    """Return the address used for a name that resolves to these; ODD is an unsupported address
    family.
    """
    async def work():
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]

            async def named(host, at):
                return [(ODD if one == ODD else socket.AF_INET, socket.SOCK_STREAM, 0, "",
                         (one, at)) for one in hosts]

            async def sock_connect(sock, address):
                if address[0] == SWALLOWS:
                    await asyncio.sleep(60)
                await connect(sock, address)

            async def use(sock):
                found.append(sock.getpeername()[0])
                sock.close()

            found = []
            loop.sock_connect = sock_connect
            monkeypatch.setattr(dns, "_resolved", named)
            await reached("name", port, Settings("admin", bootstrap_servers="b:1"), WAIT_S, use)
            return found

    return asyncio.run(asyncio.wait_for(work(), 10))


@pytest.mark.parametrize("hosts", [
    ["127.0.0.1"], [SWALLOWS, "127.0.0.1"], [SWALLOWS, REFUSES, "127.0.0.1"], [ODD, "127.0.0.1"],
    ["127.0.0.1", SWALLOWS]])
def test_an_address_that_leads_nowhere_hides_no_other(monkeypatch, hosts):
    assert used(monkeypatch, *hosts) == ["127.0.0.1"]


@pytest.mark.parametrize(("hosts", "why"), [
    ([REFUSES], ConnectionRefusedError), ([REFUSES, SWALLOWS], TimeoutError), ([], OSError)])
def test_that_none_of_them_leads_anywhere_is_an_error(monkeypatch, hosts, why):
    with pytest.raises(why):
        used(monkeypatch, *hosts)


def test_connection_has_the_configured_buffers():
    async def work(**given) -> tuple[int, int]:
        sizes = []

        async def use(sock):
            sizes.extend(sock.getsockopt(socket.SOL_SOCKET, option)
                         for option in (socket.SO_SNDBUF, socket.SO_RCVBUF))
            sock.close()

        with socket.create_server(("127.0.0.1", 0)) as server:
            await reached("127.0.0.1", server.getsockname()[1],
                          Settings("admin", bootstrap_servers="b:1", **given), 30, use)
        return tuple(sizes)

    # Linux doubles the value, for its own bookkeeping.
    assert asyncio.run(work(send_buffer_bytes=20_000, receive_buffer_bytes=30_000)) == (
        40_000, 60_000)
