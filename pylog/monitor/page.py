"""The text of one scrape, formatted by the table of metrics.

Owns: the text.
Invariants: a family is written once, completely; label names come from the table; the two formats
  differ only in the headers and the end.
Source: OpenMetrics 1.0; Prometheus' text format 0.0.4.
"""

from pylog.monitor import metrics
from pylog._native.server import metrics as native_metrics

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
LABEL_CHARACTERS_MAX = 255  # longer than the longest topic name (249)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _bounds(first: int, unit: int) -> list:
    """Return the upper bounds of a native histogram's buckets as text."""
    return [repr(2 ** (first + at) / unit) for at in range(native_metrics.BUCKETS - 1)] + ["+Inf"]


_BOUNDS = {"seconds": (_bounds(native_metrics.NS_FIRST, 10**9), 10**9),
           "bytes": (_bounds(native_metrics.BYTES_FIRST, 1), 1)}


def labels(name: str, *values) -> bytes:
    """Return the text between the braces of a sample of the family `name`.

    Clients choose the names of groups and topics, so each value is bounded and printable.
    """
    names = metrics.ALL[name].labels
    assert len(names) == len(values), (name, values)
    return ",".join(f'{label}="{_label_value(str(value))}"'
                    for label, value in zip(names, values, strict=True)).encode(
                        "utf-8", "replace")


def _label_value(text: str) -> str:
    """Return a label value of bounded length without control characters.

    A changed value ends in a digest of the original, so that two names with the same start stay two
    series.
    """
    if len(text) <= LABEL_CHARACTERS_MAX and text.replace("\n", "").isprintable():
        return text.translate(_ESCAPES)
    # Imported here: such names are rare.
    import hashlib

    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[:LABEL_CHARACTERS_MAX])
    return f"{shown.translate(_ESCAPES)}~{digest}"


class Page:
    """Families, one after the other. open_metrics: True for OpenMetrics, False for Prometheus' text
    format.
    """

    def __init__(self, open_metrics: bool):
        self.content_type = OPEN_METRICS if open_metrics else TEXT
        self._open_metrics = open_metrics
        self._text = native_metrics.Exposition()
        self._written: set[str] = set()

    def family(self, name: str, samples) -> None:
        """Write a family, also under its former name. samples: [(label values, number)]."""
        samples = list(samples)
        for each in (name, metrics.FORMER_NAMES.get(name)):
            if each is not None:
                self._family(each, samples)

    def _family(self, name: str, samples: list) -> None:
        metric = self._head(name)
        self._text.put("".join(
            _line(metric.sample, labels(name, *values).decode(), number)
            for values, number in samples).encode())

    def single(self, name: str, number) -> None:
        """Write a family with one sample without labels."""
        self.family(name, [((), number)])

    def histograms(self, name: str, samples) -> None:
        """Write a family. samples: [(label values, (sum, counts))] of native histograms."""
        metric = self._head(name)
        bounds, unit = _BOUNDS[metric.unit]
        lines = []
        for values, (total, counts) in samples:
            shared = labels(name, *values).decode()
            comma, upto = "," if shared else "", 0
            for bound, count in zip(bounds, counts, strict=True):
                upto += count
                lines.append(_line(f"{name}_bucket", f'{shared}{comma}le="{bound}"', upto))
            lines.append(_line(f"{name}_sum", shared, total / unit if unit > 1 else total))
            lines.append(_line(f"{name}_count", shared, upto))
        self._text.put("".join(lines).encode())

    def columns(self, rows, values, names) -> None:
        """Write families that share label rows. names: [(family, column of the figures)]; rows: the
        labels.
        """
        for name, column in names:
            self._text.figure(self._head(name).sample.encode(), rows, values, column)

    def integers(self, name: str, rows, values, thousandths: bool = False) -> None:
        """Write a family. values: array('q'), one for each row; thousandths: values are
        thousandths, and negative ones are omitted.
        """
        self._text.integers(self._head(name).sample.encode(), rows, values, thousandths)

    def value(self) -> bytes:
        """Return the whole text."""
        if self._open_metrics:
            self._text.put(b"# EOF\n")
        return self._text.value()

    def _head(self, name: str):
        metric = metrics.ALL[name]
        assert name not in self._written, name
        self._written.add(name)
        shown = name if self._open_metrics else metric.sample
        lines = f"# HELP {shown} {metric.help.translate(_ESCAPES)}\n# TYPE {shown} {metric.type}\n"
        if self._open_metrics and metric.unit:
            lines += f"# UNIT {shown} {metric.unit}\n"
        self._text.put(lines.encode())
        return metric


def _line(name: str, shared: str, number) -> str:
    return f"{name}{{{shared}}} {number!r}\n" if shared else f"{name} {number!r}\n"
