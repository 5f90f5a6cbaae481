"""Lists: search text, order, page and size from the query, and the same rows as JSON or CSV.

Owns: nothing.
Invariants: only the rows on the page are filled with values that are expensive to read, unless the
  list is sorted by one of them, which only a few requests may do at a time; a cell of a CSV file
  is never a formula.
Source: OWASP, CSV injection.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

SIZE, SIZE_MAX, EXPORT_SIZE, EXPORT_SIZE_MAX = 50, 500, 10_000, 100_000
PAGE_MAX = 1_000_000
FORMULA = ("=", "+", "-", "@", "\t", "\r")

Row = dict[str, Any]


class Column(NamedTuple):
    """key: of a row. title: in the table's head. sorts: may order the list. is_lazy: filled only
    for the rows on the page. is_number: right-aligned, and ordered from the largest first.
    """

    key: str
    title: str
    sorts: bool = True
    is_lazy: bool = False
    is_number: bool = False


@dataclass
class Listing:
    """The rows of one page. `query` is the request's; `total` counts the rows that match q."""

    columns: Sequence[Column]
    rows: list[Row]
    total: int
    all: int
    q: str
    sort: str
    page: int
    size: int
    format: str
    path: str
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        """Return the number of the first row on the page, from 1; 0 for an empty list."""
        return (self.page - 1) * self.size + 1 if self.total else 0

    def link(self, **changes: object) -> str:
        """Return this list's path with some parts of its query changed."""
        from urllib.parse import urlencode

        query = {**self.extra, "q": self.q, "sort": self.sort,
                 "page": self.page if self.page > 1 else "",
                 "size": self.size if self.size != SIZE else "", **changes}
        text = urlencode({key: value for key, value in query.items() if value not in ("", None)})
        return f"{self.path}?{text}" if text else self.path

    def sort_link(self, column: Column) -> str:
        """Return the path that orders by a column, or reverses the order by it."""
        first = f"-{column.key}" if column.is_number else column.key
        other = column.key if column.is_number else f"-{column.key}"
        return self.link(sort=other if self.sort == first else first, page="")

    def order(self, column: Column) -> str:
        """Return the value of aria-sort: ascending, descending or none."""
        if self.sort.lstrip("-") != column.key:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    def response(self, name: str) -> Response | None:
        """Return the rows as JSON or CSV if the query has `format`, else None."""
        keys = [column.key for column in self.columns]
        if self.format == "json":
            return JSONResponse({
                "total": self.total, "page": self.page, "size": self.size,
                "rows": [{key: row.get(key) for key in keys} for row in self.rows]})
        if self.format == "csv":
            text = csv_text(keys, ([row.get(key) for key in keys] for row in self.rows))
            return Response(text, media_type="text/csv; charset=utf-8", headers={
                "Content-Disposition": f'attachment; filename="{name}.csv"'})
        return None


async def listed(request: Request, columns: Sequence[Column], rows: Iterable[Row], *,
                 search: Sequence[str], sort: str,
                 fill: Callable[[list[Row]], Awaitable[None]] | None = None,
                 keep: Sequence[str] = ()) -> Listing:
    """Return the page of rows that the request's query selects.

    search: keys whose text `q` is looked for, without regard to case. sort: the default order, a
    key, with `-` for descending. fill: adds the lazy columns to the rows it gets. keep: other
    names of the query that links retain.
    """
    query = request.query_params
    wanted = query.get("q", "").strip()
    found = rows = list(rows)
    if wanted:
        text = wanted.casefold()
        found = [row for row in rows if any(
            text in str(row.get(key) or "").casefold() for key in search)]
    by_key = {column.key: column for column in columns if column.sorts}
    chosen = query.get("sort", sort)
    column = by_key.get(chosen.lstrip("-"))
    if column is None:
        chosen, column = sort, by_key[sort.lstrip("-")]
    if column.is_lazy and fill is not None:
        async with request.app.state.console.whole_lists:
            await fill(found)
    found = _ordered(found, column.key, chosen.startswith("-"))
    kind = query.get("format", "")
    exports = kind in ("json", "csv")
    size = _number(query.get("size", ""), EXPORT_SIZE if exports else SIZE,
                   EXPORT_SIZE_MAX if exports else SIZE_MAX)
    pages = max(1, -(-len(found) // size))
    page = min(pages, _number(query.get("page", ""), 1, PAGE_MAX))
    visible = found[(page - 1) * size:page * size]
    if fill is not None and not column.is_lazy:
        await fill(visible)
    return Listing(columns, visible, len(found), len(rows), wanted, chosen, page, size, kind,
                   request.url.path, {name: query[name] for name in keep if query.get(name)})


def _ordered(rows: list[Row], key: str, descending: bool) -> list[Row]:
    """Return rows by a key. Rows without a value come last in both directions."""
    known = [row for row in rows if row.get(key) is not None]
    known.sort(key=lambda row: _comparable(row[key]), reverse=descending)
    return known + [row for row in rows if row.get(key) is None]


def _comparable(value: Any) -> Any:
    return (1, 0, value.casefold(), value) if isinstance(value, str) else (0, value, "", "")


def _number(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isdecimal() and 0 < len(text) < 10 and int(text) \
        else default


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV file. Cells that a spreadsheet would take for formulas get a leading quote."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(map(csv_cell, head))
    for row in rows:
        writer.writerow(map(csv_cell, row))
    return out.getvalue()


def csv_cell(value: Any) -> str:
    """Return the text of one CSV cell."""
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple, set)):
        value = ", ".join(map(str, value))
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text
