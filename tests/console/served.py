"""A console inside a test: on a thread, with an HTTP client that keeps cookies."""

import asyncio
import http.client
import http.cookies
import re
import threading
import urllib.parse
from types import SimpleNamespace

from pylog.config import Settings
from pylog.console import serving
from pylog.console.app import Console
from pylog.console.clusters import ClusterConfig

WAIT_S = 60


class Clock:
    """The console's two clocks."""

    def __init__(self):
        self.now_s = 1_800_000_000.0

    def seconds(self):
        return self.now_s

    def now_ms(self):
        return int(self.now_s * 1000)


class Served:
    """A running console. clusters: {name: client settings}. settings: of the console."""

    def __init__(self, clusters, **settings):
        self.clock = Clock()
        texts = {"console.listener": "127.0.0.1:0", "console.lag.interval.ms": "0",
                 **{name.replace("_", "."): str(value) for name, value in settings.items()}}
        self.console = Console(Settings(texts), [ClusterConfig(*row) for row in clusters.items()],
                               self.clock.now_ms, self.clock.seconds)
        self._ready = threading.Event()
        self._server, self._sock = serving.server_of(self.console, self._set_url)
        self._thread = threading.Thread(target=self._run, name="console")
        self.url = ""
        self.loop = None

    def _set_url(self, url):
        self.url = url.rstrip("/")
        self._ready.set()

    def _run(self):
        async def serve():
            self.loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._sock])

        with self._sock:
            asyncio.run(serve())

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *exception):
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def client(self):
        return Client(self.url)


class Client:
    """Sends requests and keeps cookies, but follows no redirects unless asked to."""

    def __init__(self, url):
        self.url = url
        self.host = urllib.parse.urlsplit(url).netloc
        self.cookies = {}

    def send(self, method, path, form=None, headers=None):
        body = None if form is None else urllib.parse.urlencode(form)
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection(self.host, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {**sent, **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        set_cookies = response.headers.get_all("Set-Cookie") or []
        for line in set_cookies:
            for name, morsel in http.cookies.SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        return SimpleNamespace(status=response.status, text=text, headers=response.headers,
                               set_cookies=set_cookies)

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, form=None, page=None, **headers):
        """Send a form, with the token of the page that the form is on. page: its path if it is
        another one than the form's.
        """
        action = re.escape((page or path).partition("?")[0])
        page = self.get(page or (path if path != "/logout" else "/about")).text
        found = re.search(rf'<form [^>]*action="{action}["?].*?name="csrf" value="([^"]+)"', page,
                          re.DOTALL)
        token = found.group(1) if found else ""
        return self.send("POST", path, {"csrf": token, **(form or {})}, headers)

    def log_in(self, user, password, path="/login"):
        return self.post(path, {"user": user, "password": password})
