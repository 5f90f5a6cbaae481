"""A registry inside a test: on a thread, with a client for its endpoints."""

import asyncio
import base64
import http.client
import json
import threading
import time
import urllib.parse

from pylog.config import Settings
from pylog.registry.serving import RegistryServer

WAIT_S = 60
EXTENDED = {"Confluent-Accept-Unknown-Properties": "true"}


class Served:
    """A running registry. client: settings of its connections. settings: of the registry, with or
    without the prefix `schema.registry.`.
    """

    def __init__(self, client, **settings):
        texts = {"schema.registry.listener": "127.0.0.1:0"}
        for name, value in settings.items():
            dotted = name.replace("_", ".")
            texts[dotted if dotted == "super.users" else f"schema.registry.{dotted}"] = str(value)
        self.server = RegistryServer(Settings(texts), client, lambda: 1_800_000_000_000,
                                     time.monotonic)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="registry")

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def __enter__(self):
        self._thread.start()
        try:
            self.call(self.server.start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exception):
        self.call(self.server.close())
        self._stop()

    def _stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self.loop.close()

    @property
    def url(self):
        return self.server.url

    def client(self, user=None, password=""):
        return Client(self.url, user, password)


class Client:
    """Sends requests and returns (status, answer)."""

    def __init__(self, url, user=None, password=""):
        self.host = urllib.parse.urlsplit(url).netloc
        self.headers = {}
        if user is not None:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {token}"

    def send(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.host, timeout=WAIT_S)
        try:
            given = {**self.headers, **(headers or {})}
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                given.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, given)
            response = connection.getresponse()
            text = response.read().decode()
            self.last = response
            return response.status, json.loads(text) if text else None
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.send("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.send("POST", path, body, headers)

    def put(self, path, body):
        return self.send("PUT", path, body)

    def delete(self, path):
        return self.send("DELETE", path)

    def register(self, subject, schema, **more):
        """Register a schema and return its id."""
        status, answer = self.post(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions",
                                   {"schema": text_of(schema), **more})
        assert status == 200, answer
        return answer["id"]


def text_of(schema):
    return schema if isinstance(schema, str) else json.dumps(schema)


def record(name, *fields):
    """Return a record schema. fields: names, or (name, type) or (name, type, default)."""
    rows = []
    for field in fields:
        given = (field, "string") if isinstance(field, str) else field
        row = {"name": given[0], "type": given[1]}
        if len(given) > 2:
            row["default"] = given[2]
        rows.append(row)
    return {"type": "record", "name": name, "fields": rows}


def code(answer):
    """Return (status, error code) of an answer."""
    status, body = answer
    return status, body["error_code"]
