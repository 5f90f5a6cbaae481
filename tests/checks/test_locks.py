import shutil

import pytest

from tests.checks import locks

HEAD = """
#include "os/lock.h"
struct box { struct lock lock; int inside GUARDED_BY(lock); struct lock_role role;
             int own GUARDED_BY(role); struct lock later ACQUIRED_AFTER(lock); };
static int look(struct box *b) REQUIRES(b->lock);
static int look(struct box *b) { return b->inside; }
static int bare(struct box *b) EXCLUDES(b->lock);
static int bare(struct box *b) {
    lock_acquire(&b->lock);
    int found = look(b);
    lock_release(&b->lock);
    return found;
}
"""
needs_clang = pytest.mark.skipif(
    shutil.which(locks.CLANG) is None, reason=f"no {locks.CLANG}, which `make tidy` installs")


@needs_clang
@pytest.mark.parametrize(("body", "words"), [
    ("return b->inside;", "reading variable 'inside' requires holding"),
    ("b->inside = 1; return 0;", "writing variable 'inside' requires holding"),
    ("return look(b);", "requires holding mutex 'b->lock'"),
    ("lock_acquire(&b->lock); return 0;", "still held at the end"),
    ("lock_acquire(&b->lock); int r = bare(b); lock_release(&b->lock); return r;",
     "cannot call function 'bare' while mutex"),
    ("lock_acquire(&b->later); lock_acquire(&b->lock); lock_release(&b->lock);"
     "lock_release(&b->later); return 0;", "must be acquired before"),
    ("return b->own;", "requires holding thread role"),
    ("if (lock_try_acquire(&b->lock)) return 0; return 0;", "not held on every path"),
])
def test_a_broken_rule_of_a_lock_is_found(tmp_path, body, words):
    assert words in _said(tmp_path, body)


@needs_clang
@pytest.mark.parametrize("body", [
    "return bare(b);",
    "if (!lock_try_acquire(&b->lock)) return 0; int r = look(b); lock_release(&b->lock); return r;",
    "lock_acquire(&b->lock); lock_acquire(&b->later); lock_release(&b->later);"
    "lock_release(&b->lock); return 0;",
    "lock_role_assert(&b->role); return b->own;",
])
def test_locks_that_are_used_by_the_rules_pass(tmp_path, body):
    assert _said(tmp_path, body) == ""


@needs_clang
def test_source_tree_has_no_lock_errors():
    assert locks.check(locks.sources()) == ""


@needs_clang
def test_the_c_of_the_tests_compiles():
    paths = locks.sources_of_tests()
    assert {path.parent.name for path in paths} >= {"fuzz", "log", "net", "serve"}
    assert locks.check(paths, locks.SYNTAX) == ""


@needs_clang
@pytest.mark.parametrize(("text", "words"), [
    ('#include "log/gone.h"', "file not found"),
    ("int test(void) { return gone(); }", "undeclared function 'gone'"),
])
def test_a_header_that_moved_is_found(tmp_path, text, words):
    source = tmp_path / "moved.c"
    source.write_text(f"{text}\n")
    assert words in locks.check([source], locks.SYNTAX)


def _said(tmp_path, body: str) -> str:
    source = tmp_path / "box.c"
    source.write_text(f"{HEAD}int test(struct box *b);\nint test(struct box *b) {{ {body} }}\n")
    return locks.check([source])
