"""The mutation tool on a small tree: it kills exactly the mutants that a test detects.

A planted mistake must be killed, an equivalent mutant must survive, and a test that fails without a
mutant or intermittently must not count as a kill.
"""

import subprocess
import textwrap

import pytest

from tests.mutants import c_sites, parts, python_sites, reports, runs
from tests.mutants.sites import Site
from tests.mutants.trees import Tree

C_SOURCE = """
    /* if (a < b) removed(); */
    enum { LIMIT = 7 };
    static int helper(int n) { return n + 1; }
    int wake(int n);
    int ranked(int n, int low) {
        assert(n < 100);
        const char *text = "n < 3 && true";
        if (n > low && text != 0) return helper(n) - 1;
        if (wake(n) != 0) return -1;
        wake(low);
        return n + low + n;
    }
"""
PYTHON_SOURCE = '''
    """Docs with 1 < 2."""
    LIMIT = 7


    def ranked(n, low=0):
        """More docs."""
        assert n < 100
        if n > low and not n == 5:
            raise ValueError("é < 3")
        log.info("n < %d", 3)
        state.notify(n)
        return n + low + 1
'''
TESTS = '''
    import ctypes
    import pathlib

    from small_package import small

    HERE = pathlib.Path(__file__).resolve().parent.parent
    NATIVE = ctypes.CDLL(str(HERE / "small.so"))


    def test_broken_in_any_case():
        assert False


    def test_now_and_then():
        """Fails at each third run, whatever it runs on."""
        counter = HERE / "counter"
        runs = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(runs))
        assert runs % 3


    def test_python():
        assert small.above(3) and not small.above(0)


    def test_native():
        assert NATIVE.twice(4) == 8
'''
SETUP = '''
    import pathlib, shutil, subprocess

    at = pathlib.Path("build/temp.x")
    (at / "csrc").mkdir(parents=True, exist_ok=True)
    pathlib.Path("build/lib.x").mkdir(exist_ok=True)
    (at / "libpylogcore.list").write_text(f"{at}/csrc/small.o")
    (at / "csrc/small.how").write_text(
        f"gcc -O2 -fPIC -c csrc/small.c -o {at}/csrc/small.o")
    (at / "small.linked").write_text(
        f"gcc -shared -Wl,--whole-archive {at}/libpylogcore.a -Wl,--no-whole-archive "
        "-o build/lib.x/small.so")
    for command in ((at / "csrc/small.how").read_text(),
                    f"ar rcs {at}/libpylogcore.a {at}/csrc/small.o",
                    (at / "small.linked").read_text()):
        subprocess.run(command.split(), check=True)
    shutil.copy("build/lib.x/small.so", "small.so")
'''
C_SMALL = "int twice(int n) {\n    int more = 0;\n    if (n > 1000000) more = 1;\n" \
          "    return n + n + more;\n}\n"
PYTHON_SMALL = "def above(n):\n    return n > 0\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    given = {"setup.py": SETUP, "tests/test_small.py": TESTS, "csrc/small.c": C_SMALL,
             "small_package/small.py": PYTHON_SMALL,
             "small_package/__init__.py": "", ".gitignore": "build/\n*.so\n"}
    for name, text in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setattr(parts, "PARTS", {
        "small": parts.Part(("csrc/*.c", "small_package/*.py"), ("tests/test_*.py",), ())})
    return root


@pytest.fixture
def judge(tree, monkeypatch):
    # Other plugins would add a second to each of the many starts.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    runner = runs.Runner(Tree(tree), wide=False)
    runner.prepare()

    def judged(path: str, old: str, new: str) -> runs.Verdict:
        text = (tree / path).read_text()
        assert text.count(old) == 1
        site = Site(path, "planted", text.index(old), text.index(old) + len(old), new)
        return runner.judge("small", site)

    return judged


def test_mutant_that_a_test_detects_is_killed_by_it(judge):
    for path, old, new, test in (("csrc/small.c", "n + n", "n + 1", "test_native"),
                                 ("small_package/small.py", "> 0", ">= 0", "test_python")):
        verdict = judge(path, old, new)
        assert (verdict.what, verdict.by) == ("killed", f"tests/test_small.py::{test}")


def test_undetectable_mutant_survives_and_same_code_is_reported(judge):
    assert judge("small_package/small.py", "n > 0", "n >= 1").what == "survived"
    assert judge("csrc/small.c", "> 1000000", "> 1000001").what == "survived"
    assert judge("csrc/small.c", "n + n", "2 * n").what == "same code"
    assert judge("small_package/small.py", "n > 0", "(n > 0)").what == "same code"


def test_mutant_that_does_not_build_is_stillborn_and_the_next_is_judged(judge, tree):
    assert judge("csrc/small.c", "n + n", "n n").what == "stillborn"
    assert judge("small_package/small.py", "n > 0", "n >").what == "stillborn"
    assert judge("csrc/small.c", "n + n", "n - n").what == "killed"
    copy = tree / "build/mutants"
    for name in ("small.so", "build/temp.x/csrc/small.o", "build/temp.x/libpylogcore.a"):
        assert (copy / name).read_bytes() == (copy / "build/clean" / name).read_bytes()
    assert (copy / "csrc/small.c").read_text() == C_SMALL
    assert (copy / "small_package/small.py").read_text() == PYTHON_SMALL


def test_report_counts_mutants_with_a_verdict(tree):
    site = Site("small_package/small.py", "comparison", PYTHON_SMALL.index(">"),
                PYTHON_SMALL.index(">") + 1, ">=")
    verdicts = [runs.Verdict("small", site, what, by, 1.0) for what, by in (
        ("killed", "tests/a.py::one"), ("killed", "b"), ("killed", "c"), ("survived", ""),
        ("same code", ""), ("stillborn", "x | y"), ("not run", ""))]
    assert reports.share(verdicts) == 0.75
    text = reports.report(verdicts, "Mutants", tree)
    assert "| small | 3 | 1 | 1 | 1 | 0 | 1 | 75% |" in text
    assert "| small_package/small.py:2 | comparison | killed | tests/a.py::one |" in text
    assert "```diff\n-    return n > 0\n+    return n >= 0\n```" in text


def _changes(finder, source: str) -> set[tuple[str, str]]:
    text = textwrap.dedent(source)
    found = set()
    for site in finder.sites("x", text):
        mutant = site.applied(text)
        assert mutant.count("\n") == text.count("\n") and mutant != text
        found.add((site.kind, site.diff(text).partition("\n+")[2].strip()))
    return found


def test_sites_of_c_are_code_in_functions():
    assert _changes(c_sites, C_SOURCE) == {
        ("off by one", "static int helper(int n) { return n; }"),
        ("comparison", "if (n >= low && text != 0) return helper(n) - 1;"),
        ("comparison", "if (n > low && text == 0) return helper(n) - 1;"),
        ("condition", "if (n > low || text != 0) return helper(n) - 1;"),
        ("condition dropped", "if (false && (n > low && text != 0)) return helper(n) - 1;"),
        ("off by one", "if (n > low && text != 0) return helper(n);"),
        ("constant", "if (n > low && text != 1) return helper(n) - 1;"),
        ("comparison", "if (wake(n) == 0) return -1;"),
        ("condition dropped", "if (false && (wake(n) != 0)) return -1;"),
        ("constant", "if (wake(n) != 1) return -1;"),
        ("constant", "if (wake(n) != 0) return 0;"),
        ("ignored result", "(void)(wake(n) != 0);"),
        ("removed wake-up", "(void)0;"),
        ("arithmetic", "return n - low + n;"), ("arithmetic", "return n + low - n;"),
    }


def test_sites_of_python_are_code_in_functions():
    assert _changes(python_sites, PYTHON_SOURCE) == {
        ("constant", "def ranked(n, low=1):"),
        ("comparison", "if n >= low and not n == 5:"),
        ("comparison", "if n > low and not n != 5:"),
        ("condition", "if n > low or not n == 5:"),
        ("condition", "if n > low and (n == 5):"),
        ("condition dropped", "if False and (n > low and not n == 5):"),
        ("constant", "if n > low and not n == 6:"),
        ("ignored error", "pass"), ("removed wake-up", "pass"),
        ("arithmetic", "return n - low + 1"), ("off by one", "return n + low"),
        ("constant", "return n + low + 2"),
    }


def test_equivalent_sites_are_skipped():
    c = """
    int grown(int cap, int n, int more) {
        uint8_t head[16] = {0};
        cap = cap == 0 ? 16 : cap * 2;
        int most = n < more ? more : n;
        assert_slow(n < 4);
        free_all(n);
        return most > 3 ? 3 : cap;
    }
    """
    assert _changes(c_sites, c) == {
        ("constant", "uint8_t head[16] = {1};"),
        ("comparison", "cap = cap != 0 ? 16 : cap * 2;"),
        ("constant", "return most > 4 ? 3 : cap;"), ("constant", "return most > 3 ? 4 : cap;"),
        ("comparison", "return most >= 3 ? 3 : cap;")}
    python = """
    def most(n, more):
        low = n if n < more else more
        return -1 if low > 3 else low
    """
    assert _changes(python_sites, python) == {
        ("comparison", "return -1 if low >= 3 else low"),
        ("constant", "return 0 if low > 3 else low"),
        ("constant", "return -1 if low > 4 else low")}


def test_every_part_has_files_sites_and_tests():
    for part in parts.PARTS:
        sites = runs.all_sites(part)
        assert len(sites) > 100, part
        # The file only determines the order of the tests.
        assert parts.near(part, parts.files(part)[0]) and parts.wide(part)


def test_sample_depends_only_on_the_seed():
    first, again = runs.sample("csrc-net", 40, 7), runs.sample("csrc-net", 40, 7)
    assert first == again != runs.sample("csrc-net", 40, 8)
    assert len(set(first)) == 40 and len({site.kind for site in first}) >= 8


def test_tests_that_share_a_word_with_a_file_come_first():
    near = parts.near("csrc-log", "csrc/log/log_flush.c")
    assert near[0] == "tests/native/log/test_flush_waits.py" or "flush" in near[0]
    assert "index" in parts.near("csrc-log", "csrc/segment/index_search.c")[0]


def test_lists_of_tests_contain_only_existing_files():
    for name, part in parts.PARTS.items():
        for glob in (*part.files, *part.near, *part.wide):
            assert list(parts.ROOT.glob(glob)), f"{name}: {glob}"
