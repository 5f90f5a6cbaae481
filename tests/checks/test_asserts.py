from pathlib import PurePath

from tests.checks import asserts

CODE = "/* X. */\n" + "    a = b;\n" * 991


def found(asserted: int) -> list[str]:
    texts = {PurePath(f"{folder}/x.c"): CODE + "    assert(a == b);\n" * 8
             for folder in asserts.PER_THOUSAND}
    texts[PurePath("csrc/log/x.c")] = CODE + "    assert(a == b);\n" * 8
    texts[PurePath("csrc/log/y.c")] = "    assert(a);\n" * (asserted - 1) + "    assert_slow(a);\n"
    texts[PurePath("csrc/log/x.h")] = "    assert(a != b);\n" * 100
    return [message for folder, _, message in asserts.too_few(texts) if folder == "csrc/log"]


def test_a_folder_with_fewer_asserts_than_its_bound_is_found():
    assert found(7) == ["15 asserts in 1007 lines, at least 16: assert what a function relies on "
                        "(15 a thousand lines)"]


def test_a_folder_at_its_bound_passes():
    assert found(8) == []


def test_compile_time_checks_do_not_count_as_assertions():
    texts = {PurePath("csrc/log/x.c"): "static_assert(A == B);\n" * 100}
    assert len(list(asserts.too_few(texts))) == 1
