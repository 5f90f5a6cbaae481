"""A simulated schema registry: schemas by id, subjects and their versions in memory.

A schema is compatible if its text does not contain "bad". Requests for subjects with "broken" in
their names get a server error.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

NO_SUBJECT, NO_VERSION, NO_SCHEMA, NOT_DELETED, NO_LEVEL = 40401, 40402, 40403, 40405, 40408


class Played:
    """The registry's state. asked: (method, path) of each request; headers: of the last one."""

    def __init__(self):
        self.asked: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        self.schemas: dict[int, dict] = {}
        self.subjects: dict[str, dict[int, int]] = {}  # {version: id}
        self.deleted: dict[str, dict[int, int]] = {}
        self.levels: dict[str | None, str] = {None: "BACKWARD"}
        self.url = ""

    def answer(self, method: str, path: str, body: dict | None) -> tuple[int, object]:
        """Return (status, document)."""
        self.asked.append((method, path))
        if "broken" in path:
            return 503, _error(50001, "down")
        asked = urlsplit(path)
        words = [unquote(word) for word in asked.path.strip("/").split("/")]
        what = getattr(self, f"_{method.lower()}_{words[0]}")
        return what(words[1:], body, asked.query)

    def _get_schemas(self, words, body, query):
        found = self.schemas.get(int(words[1]))
        return (200, found) if found else (404, _error(NO_SCHEMA, "no schema"))

    def _get_subjects(self, words, body, query):
        if not words:
            known = {*self.subjects, *(self.deleted if query == "deleted=true" else ())}
            return 200, sorted(known)
        versions = self.subjects.get(words[0])
        if not versions:
            return 404, _error(NO_SUBJECT, f"no subject {words[0]}")
        if len(words) == 2:
            return 200, sorted(versions)
        version = max(versions) if words[2] == "latest" else int(words[2])
        if version not in versions:
            return 404, _error(NO_VERSION, f"no version {version}")
        number = versions[version]
        return 200, {**self.schemas[number], "subject": words[0], "version": version, "id": number}

    def _post_subjects(self, words, body, query):
        number = next((n for n, row in self.schemas.items() if row == body), 0)
        versions = self.subjects.get(words[0], {})
        if len(words) == 1:
            known = number in versions.values()
            return (200, {"id": number}) if known else (404, _error(NO_SCHEMA, "no schema"))
        if "bad" in body["schema"] and versions:
            return 409, _error(409, "it is not compatible")
        if not number:
            number = len(self.schemas) + 1
            self.schemas[number] = body
        if number not in versions.values():
            past = {**versions, **self.deleted.get(words[0], {})}
            self.subjects[words[0]] = {**versions, max(past, default=0) + 1: number}
        return 200, {"id": number}

    def _delete_subjects(self, words, body, query):
        permanent = query == "permanent=true"
        there = self.deleted if permanent else self.subjects
        versions = there.get(words[0], {})
        gone = {v: i for v, i in versions.items() if len(words) == 1 or v == int(words[2])}
        if not gone:
            return 404, _error(NOT_DELETED if permanent else NO_SUBJECT, "there is none")
        there[words[0]] = {v: i for v, i in versions.items() if v not in gone}
        if not there[words[0]]:
            del there[words[0]]
        if not permanent:
            self.deleted[words[0]] = {**self.deleted.get(words[0], {}), **gone}
        return 200, sorted(gone) if len(words) == 1 else int(words[2])

    def _post_compatibility(self, words, body, query):
        fits = "bad" not in body["schema"]
        return 200, {"is_compatible": fits, **({} if fits else {"messages": ["it is bad"]})}

    def _get_config(self, words, body, query):
        level = self.levels.get(words[0] if words else None)
        return (200, {"compatibilityLevel": level}) if level else (
            404, _error(NO_LEVEL, "no level of its own"))

    def _put_config(self, words, body, query):
        self.levels[words[0] if words else None] = body["compatibility"]
        return 200, body


def _error(code: int, message: str) -> dict:
    return {"error_code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *given):
        pass

    def _answer(self):
        length = int(self.headers["Content-Length"] or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.played.headers = self.headers
        status, document = self.server.played.answer(self.command, self.path, body)
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _answer


@contextlib.contextmanager
def played() -> Iterator[Played]:
    """Run a registry, served at its `url`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.played = Played()
    server.played.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.played
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
