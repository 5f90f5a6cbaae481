"""Results of mutants, as Markdown.

Owns: nothing.
Invariants: killed share: mutants without a verdict, mutants that do not compile and those that gcc
  compiles to the same code are excluded from it and listed separately.
"""

from collections import Counter
from pathlib import Path

from tests.mutants.runs import Verdict

COUNTED = ("killed", "survived")
WHATS = (*COUNTED, "same code", "stillborn", "no verdict", "not run")


def share(verdicts: list[Verdict]) -> float:
    """Return the killed share, or 1.0 if no mutant counts."""
    counted = [one for one in verdicts if one.what in COUNTED]
    return sum(one.what == "killed" for one in counted) / len(counted) if counted else 1.0


def report(verdicts: list[Verdict], title: str, root: Path) -> str:
    lines = [f"# {title}", "", "| part | " + " | ".join(WHATS) + " | killed |",
             "|---|" + "--:|" * (len(WHATS) + 1)]
    rows = [(part, [one for one in verdicts if one.part == part])
            for part in dict.fromkeys(one.part for one in verdicts)]
    for name, some in [*rows, ("all", verdicts)]:
        counts = Counter(one.what for one in some)
        lines.append(f"| {name} | " + " | ".join(str(counts[what]) for what in WHATS)
                     + f" | {share(some):.0%} |")
    lines += ["", "| mutant | kind | verdict | by |", "|---|---|---|---|"]
    for one in verdicts:
        text = (root / one.site.path).read_text()
        lines.append(f"| {one.site.path}:{one.site.line(text)} | {one.site.kind} | {one.what} | "
                     f"{one.by.replace('|', chr(92) + '|')} |")
    for one in verdicts:
        if one.what in ("survived", "no verdict"):
            text = (root / one.site.path).read_text()
            lines += ["", f"{one.site.path}:{one.site.line(text)} {one.site.kind}, {one.what}", "",
                      "```diff", one.site.diff(text), "```"]
    return "\n".join(lines) + "\n"
