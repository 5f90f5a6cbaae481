"""From a setting's text to its typed value and back, with the limits of its row.

Owns: nothing.
Called by: config.settings, config.topics; api.configs for what DescribeConfigs shows.
Invariants: (1) parse(format(value)) == value for every value that parse returns;
  (2) a number is read as Java reads it: no underscores, no spaces inside, 16, 32 or 64 bits.
Source: the meaning of org.apache.kafka.common.config.ConfigDef's types, as observed.
"""

from .catalogue import Setting
from .errors import ConfigError

_BITS = {"short": 16, "int": 32, "long": 64}
_DIGITS = frozenset("0123456789")
_HUGE = float("inf")
Value = bool | int | float | str | tuple | None


def parse(setting: Setting, text: str) -> Value:
    """The typed value of `text`; raises ConfigError with name, value and what is allowed."""
    text = text.strip()
    if setting.type in _BITS:
        value = _whole(setting, text)
    elif setting.type == "boolean":
        value = {"true": True, "false": False}.get(text.lower())
        if value is None:
            raise _refused(setting, text, "expected true or false")
    elif setting.type == "double":
        value = _fraction(setting, text)
    elif setting.type == "list":
        value = tuple(word.strip() for word in text.split(",") if word.strip())
    else:
        value = text
    check(setting, value)
    return value


def check(setting: Setting, value: Value) -> None:
    """Raises ConfigError when `value`, already typed, is outside the row's limits."""
    if not setting.limits or value is None:
        return
    words = value if setting.type == "list" else (value,)
    any_case = setting.limits.startswith("~")
    for word in words:
        seen = word.upper() if any_case else word
        if not any(_admits(limit, seen) for limit in _alternatives(setting)):
            raise _refused(setting, format_value(value), "expected " + allowed(setting))
    if len(set(words)) != len(words):
        raise _refused(setting, format_value(value), "a word appears twice")


def allowed(setting: Setting) -> str:
    """The row's limits in words, "" when there are none."""
    parts = []
    for limit in _alternatives(setting):
        low, dots, high = limit.partition("..")
        if not dots:
            parts.append(limit)
        elif not high:
            parts.append(f"at least {low}")
        else:
            parts.append(f"{low} to {high}" if low else f"at most {high}")
    return " or ".join(parts) if len(parts) < 3 else "one of " + ", ".join(parts)


def format_value(value: Value) -> str:
    """The text of a typed value as Kafka writes it; None, unset, is ""."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(word) for word in value)
    if isinstance(value, float):
        return _java_double(value)
    return str(value)


def _java_double(value: float) -> str:
    """As Java writes it: 0.5, but 1.0E7 and 1.7976931348623157E308."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value != value or value in (_HUGE, -_HUGE):
        return repr(value).replace("nan", "NaN").replace("inf", "Infinity")
    digits = next(text for text in (f"{value:.{count}e}" for count in range(1, 18))
                  if float(text) == value)
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}E{int(exponent)}"


def _alternatives(setting: Setting) -> list[str]:
    return setting.limits.removeprefix("~").split("|") if setting.limits else []


def _admits(limit: str, word) -> bool:
    low, dots, high = limit.partition("..")
    if isinstance(word, str):
        return word == limit or limit == "non-empty" and word != ""
    if not dots:
        return word == float(limit)
    return (not low or word >= float(low)) and (not high or word <= float(high))


def _whole(setting: Setting, text: str) -> int:
    bits = _BITS[setting.type]
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits or not _DIGITS.issuperset(digits):
        raise _refused(setting, text, "expected a whole number")
    if len(digits) > 40:
        # Python refuses to convert very long numbers with an error of its own.
        raise _refused(setting, f"{text[:40]}...", f"a number of {len(digits)} digits")
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _refused(setting, text, f"expected a number of {bits} bits")
    return value


def _fraction(setting: Setting, text: str) -> float:
    try:
        if "_" in text:
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise _refused(setting, text, "expected a number") from None


def _refused(setting: Setting, text: str, why: str) -> ConfigError:
    shown = "[hidden]" if setting.type == "password" else text
    return ConfigError(f"Invalid value {shown} for configuration {setting.name}: {why}")
