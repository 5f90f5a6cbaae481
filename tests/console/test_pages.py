"""The route table: what each page must declare."""

import pytest

from pylog.console.pages import ADMINISTER, BROWSE, CLUSTER, PERMISSIONS, Page
from pylog.console.views import all_pages


async def view(request, cluster):
    raise AssertionError


def test_every_page_declares_operations_changes_and_audit():
    pages = all_pages()
    assert len(pages) > 5
    for page in pages:
        assert page.changes in (True, False), page.path
        assert isinstance(page.audit, str), page.path
        assert page.operations or page.scope != CLUSTER, page.path
        assert page.audit or not page.changes, page.path
        assert page.permission in PERMISSIONS, page.path


def test_only_pages_with_changes_or_without_a_cluster_accept_post():
    """A POST of another page would pass read-only mode. A check of a schema writes nothing."""
    assert [page.path for page in all_pages()
            if "POST" in page.methods and not page.changes and page.scope == CLUSTER
            ] == ["/schemas/check"]


def test_no_two_pages_have_the_same_path_and_method():
    rows = [(page.path, method) for page in all_pages() for method in page.methods]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("missing", [
    {"changes": None}, {"audit": None}, {"operations": ()}, {"changes": True, "audit": ""},
    {"changes": True, "methods": ("GET",)}])
def test_a_page_with_a_missing_declaration_is_rejected(missing):
    complete = {"path": "/x", "view": view, "methods": ("POST",), "operations": ("ALTER TOPIC",),
                "changes": True, "audit": "x.change"}
    assert Page(**complete).permission == ADMINISTER
    with pytest.raises(ValueError, match="the page /x"):
        Page(**{**complete, **missing})


def test_pages_that_change_nothing_need_the_permission_to_browse():
    page = Page("/x", view, operations=("DESCRIBE TOPIC",), changes=False, audit="")
    assert page.permission == BROWSE
