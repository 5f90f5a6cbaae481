from pathlib import Path, PurePath

from tests.checks import c_calls, layers

ROOT = Path(__file__).resolve().parents[2]


def test_definitions_and_calls_are_found():
    found = c_calls.functions("""
/* not_this() {} */
enum serve_status start(struct serve *s,
                        int n) REQUIRES(s->lock) {
    return other(s, "text(") + n;
}
static inline bool is_even(int n) { return half(n) * 2 == n; }
struct point {
    int x;
};
int declared(int n);
""")
    assert found == {"start": c_calls.Function(False, ("other",)),
                     "is_even": c_calls.Function(True, ("half",))}


def test_calls_resolve_to_the_own_static_function_first():
    texts = {PurePath("csrc/log/a.c"): "void a(void) {\n    help();\n    b();\n}\n",
             PurePath("csrc/log/b.c"): "static void help(void) {}\n"
                                      "void b(void) {\n    help();\n}\n",
             PurePath("csrc/log/c.c"): "void help(void) {}\n"}
    assert c_calls.calls(texts) == {
        PurePath("csrc/log/a.c"): {PurePath("csrc/log/b.c"), PurePath("csrc/log/c.c")},
        PurePath("csrc/log/b.c"): set(), PurePath("csrc/log/c.c"): set()}


def test_a_cycle_of_calls_is_found():
    texts = {PurePath("csrc/log/a.c"): "void a(void) {\n    b();\n}\n",
             PurePath("csrc/net/b.c"): "void b(void) {\n    a();\n}\n"}
    assert layers.c_cycles(texts) == {frozenset({"csrc/log/a.c", "csrc/net/b.c"})}


def test_a_static_name_in_two_files_of_a_folder_is_found():
    text = "static int half(int n) { return n / 2; }\n"
    texts = {PurePath("csrc/log/a.c"): text, PurePath("csrc/log/b.c"): text,
             PurePath("csrc/net/c.c"): text}
    assert list(c_calls.shared_names(texts)) == [("csrc/log", "half", ["a.c", "b.c"])]


def test_an_internal_header_of_another_folder_is_found():
    texts = {PurePath("csrc/net/a.c"): '#include "net/reactor_internal.h"\n',
             PurePath("csrc/net/b.c"): '#include "replica/fetcher_internal.h"\n'}
    assert list(c_calls.foreign_internals(texts)) == [
        ("csrc/net/b.c", "replica/fetcher_internal.h")]


def test_the_structure_of_logs_is_included_only_where_logs_are_maintained():
    texts = {PurePath("csrc/compaction/a.c"): '#include "log/log_struct.h"\n',
             PurePath("csrc/serve/b.c"): '#include "log/log_struct.h"\n'}
    assert list(c_calls.foreign_internals(texts)) == [("csrc/serve/b.c", "log/log_struct.h")]


def test_exceptions_are_still_needed():
    texts = {path.relative_to(ROOT): path.read_text() for path in ROOT.glob("csrc/*/*.[ch]")}
    shared = {(folder, name) for folder, name, _ in c_calls.shared_names(texts)}
    assert shared == c_calls.SHARED_NAMES
    assert not list(c_calls.foreign_internals(texts))
