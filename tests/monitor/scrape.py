"""Scrapes metrics as Prometheus does."""

import gzip
import json
import re
import time
import urllib.error
import urllib.request
from urllib.parse import quote

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as older

ENDPOINT = re.compile(r'msg="metrics endpoint" address=(\S+)')


def address_of(broker, wait_s: float = 10.0) -> str:
    """Return host:port of a brokerd's metrics endpoint, from its log."""
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        found = ENDPOINT.findall(broker.log.read_text())
        if found:
            return found[-1]
        time.sleep(0.01)
    raise AssertionError(broker.tail())


def get(address: str, path: str, **headers) -> tuple[int, dict, bytes]:
    request = urllib.request.Request(f"http://{address}{path}", headers={
        name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def text(address: str, new: bool = True) -> str:
    accept = "application/openmetrics-text; version=1.0.0" if new else "text/plain"
    status, headers, body = get(address, "/metrics", Accept=accept, Accept_Encoding="gzip")
    assert status == 200, body
    assert headers["Content-Type"].startswith(accept.partition(";")[0])
    assert headers["Content-Encoding"] == "gzip"
    return gzip.decompress(body).decode()


def families(address: str, new: bool = True) -> dict:
    """Return family name -> family, parsed with the library's strict parser."""
    parse = open_metrics if new else older
    return {family.name: family for family in parse(text(address, new))}


def value(address: str, sample: str, **labels) -> float:
    """Return one sample's value, 0 if there is none."""
    for family in families(address).values():
        for one in family.samples:
            if one.name == sample and labels.items() <= one.labels.items():
                return one.value
    return 0.0


def explain(address: str, group: str) -> dict:
    status, _, body = get(address, f"/explain/group/{quote(group, safe='')}")
    return {"status": status, **json.loads(body)}
