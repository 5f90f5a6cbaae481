"""Sites for mutations in a C file, found in the text of its functions without a parser.

Owns: nothing.
Invariants: code only: comments, strings, asserts and text outside functions are never changed.
"""

import re

from tests.mutants.sites import COMPARISONS, Site, call_kind

_HIDDEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
                     r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.S | re.M)
_ASSERT = re.compile(r"\b(?:static_assert|assert|assert_slow|_Static_assert)\s*\(")
# Minimum or maximum of two operands: how equal operands compare does not matter.
_EXTREME = re.compile(r"([^=(,?:;&|{}]+?) (?:<=|>=|<|>) ([^=,?:;&|{}]+?)"
                      r" \? ([^?:;]+?) : ([^?:;,]+?)"
                      r"(?=[;,)\n]| [-+*/]|$)")
# Growth of buffers and lengths of arrays on the stack.
_GROWTH = re.compile(r"\b(?:cap|capacity|room|want|grown)\w* = [^;]*\* 2[^;]*;"
                     r"|^[ \t]+(?:const )?(?:struct )?\w+ \w+\[[^]]*\](?: =|;|,)", re.M)
_COMPARE = re.compile(r"(?<![<>=!+*/%&|^-])(<=|>=|==|!=|<|>)(?![<>=])")
_STEP = re.compile(r" ([+-]) 1(?:u|U|L|l)*\b(?!\s*<<)")
_ARITHMETIC = re.compile(r"(?<=[\w\])]) ([+-]) (?=[\w(])(?!1(?:u|U|L|l)*\b)")
_LOGIC = re.compile(r"&&|\|\|")
_IF = re.compile(r"\bif (?=\()")
_NUMBER = re.compile(r"(?<![\w.])(\d+)(?=u?\b)(?![\w.])")
_TRUTH = re.compile(r"\b(true|false)\b")
_CALL = re.compile(r"^([ \t]+)((?:\(void\))?\b([a-z_]\w*)\((?:[^;{}]*)\));[ \t]*$", re.M)
_CHECKED = re.compile(r"^([ \t]+)if \((!?[a-z_]\w*\([^;{}]*?\)(?: [!<>=]=? -?\w+)?)\) "
                      r"(?:return|break|continue|goto)\b[^;{}]*;[ \t]*$", re.M)
_QUIET = {"free", "memset", "assert", "return", "sizeof", "if", "while", "for", "switch",
          "__atomic_thread_fence"}


def sites(path: str, text: str) -> list[Site]:
    """Return every site of a file, ordered by kind and position."""
    code = blanked(text)
    inside = functions(code)
    sizes = [found.span() for found in _GROWTH.finditer(code)]
    extremes = _extremes(code)
    found = [*_operators(path, code), *_conditions(path, code), *_values(path, code),
             *_statements(path, code)]
    return [site for site in found
            if any(low < site.start and site.end <= high for low, high in inside)
            and not _within(site, sizes if site.kind == "constant" else extremes)]


def _within(site: Site, spans: list[tuple[int, int]]) -> bool:
    return any(low <= site.start and site.end <= high for low, high in spans)


def _extremes(code: str) -> list[tuple[int, int]]:
    """Return the comparisons of _EXTREME."""
    return [(found.end(1), found.start(2)) for found in _EXTREME.finditer(code)
            if {found[1].split("return ")[-1].strip(), found[2].strip()}
            == {found[3].strip(), found[4].strip()}]


def blanked(text: str) -> str:
    """Replace everything but code by blanks of the same length. Keeps code only."""
    def blank(found: re.Match) -> str:
        return re.sub(r"[^\n]", " ", found.group())

    code = _HIDDEN.sub(blank, text)
    for found in _ASSERT.finditer(code):
        end = closing(code, found.end() - 1)
        code = code[:found.start()] + re.sub(r"[^\n]", " ", code[found.start():end]) + code[end:]
    return code


def closing(code: str, at: int) -> int:
    """Return the position after the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(code)):
        if code[place] == "(":
            depth += 1
        elif code[place] == ")":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(code)


def functions(code: str) -> list[tuple[int, int]]:
    """Return the bodies of functions: from a line that ends in `) {` to the next `}` in column 0.
    """
    found = []
    for head in re.finditer(r"^\w[^;{}=]*\)[^;{}=]*\{[ \t]*$", code, re.M):
        end = code.find("\n}", head.end())
        found.append((head.end(), len(code) if end < 0 else end))
    for head in re.finditer(r"^\w[^;{}=\n]*\) \{ [^\n]* \}$", code, re.M):
        found.append((head.start() + head.group().index("{"), head.end()))
    return found


def _operators(path: str, code: str):
    for found in _COMPARE.finditer(code):
        if found[1] in "<>" and code[found.end():found.end() + 1] not in " ":
            continue  # an arrow or an include
        yield Site(path, "comparison", *found.span(1), COMPARISONS[found[1]])
    for found in _STEP.finditer(code):
        yield Site(path, "off by one", *found.span(), "")
    for found in _ARITHMETIC.finditer(code):
        yield Site(path, "arithmetic", *found.span(1), "-" if found[1] == "+" else "+")


def _conditions(path: str, code: str):
    for found in _LOGIC.finditer(code):
        yield Site(path, "condition", *found.span(), "||" if found.group() == "&&" else "&&")
    for found in _IF.finditer(code):
        end = closing(code, found.end())
        yield Site(path, "condition dropped", found.end(), end,
                   f"(false && {code[found.end():end]})")


def _values(path: str, code: str):
    for found in re.finditer(r"(?<=[=(,?:] )-1\b|(?<=return )-1\b|(?<=\()-1\b", code):
        yield Site(path, "constant", *found.span(), "0")
    for found in _NUMBER.finditer(code):
        if found[1] == "1" and code[found.start() - 1] == "-":
            continue  # all negative values mean the same
        if code[max(0, found.start() - 2):found.start()] in ("+ ", "- "):
            continue  # the off-by-one mutation covers it
        yield Site(path, "constant", *found.span(1), str(int(found[1], 0) + 1)
                   if found[1] == "0" or not found[1].startswith("0") else found[1])
    for found in _TRUTH.finditer(code):
        yield Site(path, "flag", *found.span(), "false" if found.group() == "true" else "true")


def _statements(path: str, code: str):
    for found in _CALL.finditer(code):
        name = found[3]
        if name in _QUIET or name.endswith(("_free", "_lock")) or name.startswith("free_"):
            continue  # a leak or a hang proves nothing about tests of behaviour
        yield Site(path, call_kind(name), *found.span(2), "(void)0")
    for found in _CHECKED.finditer(code):
        start = found.start() + len(found[1])
        yield Site(path, "ignored result", start, found.end(), f"(void)({found[2]});")
