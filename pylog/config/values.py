"""Converts settings between text and typed values, and checks their limits.

Owns: nothing.
Invariants: parse(format(value)) == value for every value that parse returns; numbers are parsed as
  in Java: no underscores, no inner spaces, 16, 32 or 64 bits.
Source: the meaning of org.apache.kafka.common.config.ConfigDef's types, as observed.
"""

from .catalogue import Setting
from .errors import ConfigError

# Lists without repetitions. Of other lists, only a change at run time rejects them.
UNIQUE_LISTS = frozenset((
    "group.streams.rack.aware.assignment.tags", "streams.rack.aware.assignment.tags"))
_BITS = {"short": 16, "int": 32, "long": 64}
_DIGITS = frozenset("0123456789")
_HUGE = float("inf")
TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

    # bool, int, float, str, tuple or None, depending on the row. Type checkers cannot know which.
    Value = Any
else:
    Value = object


def parse(setting: Setting, text: str) -> Value:
    """Return the typed value of `text`. Raises ConfigError with name, value and limits."""
    text = text.strip()
    value: Value
    if setting.type in _BITS:
        value = _whole(setting, text)
    elif setting.type == "boolean":
        value = {"true": True, "false": False}.get(text.lower())
        if value is None:
            raise _refused(setting, text, "Expected value to be either true or false")
    elif setting.type == "double":
        value = _fraction(setting, text)
    elif setting.type == "list":
        value = _words(setting, text)
    else:
        value = text
    check(setting, value)
    return value


def check(setting: Setting, value: Value) -> None:
    """Raise ConfigError if the typed `value` is outside the row's limits."""
    if not setting.limits or value is None:
        return
    if setting.limits.startswith("+") and not value:
        some = ", ".join(limits_of(setting))
        raise ConfigError(f"Configuration '{setting.name}' must not be empty. Valid values "
                          f"include: {f'[{some}]' if some else 'any non-empty value'}")
    any_case = setting.limits.startswith("~")
    for word in value if setting.type == "list" else (value,):
        seen = word.upper() if any_case else word
        limits = limits_of(setting)
        if limits and not any(_admits(limit, seen) for limit in limits):
            raise _refused(setting, format_value(word), _missed(setting, word))


def limits_of(setting: Setting) -> list[str]:
    """Return the row's alternatives, each a word or `low..high`; empty if there are no limits."""
    limits = setting.limits.lstrip("~+")
    return limits.split("|") if limits else []


def allowed(setting: Setting) -> str:
    """Return the row's limits as text, "" if there are none."""
    parts = ["not empty"] if setting.limits == "+" else []
    for limit in limits_of(setting):
        low, dots, high = limit.partition("..")
        if not dots:
            parts.append(limit)
        elif not high:
            parts.append(f"at least {low}")
        else:
            parts.append(f"{low} to {high}" if low else f"at most {high}")
    return " or ".join(parts) if len(parts) < 3 else "one of " + ", ".join(parts)


def _missed(setting: Setting, value: Value) -> str:
    """Return Kafka's error text for a value outside the limits: tools and tests match it."""
    limits = limits_of(setting)
    if isinstance(value, str):
        if limits == ["non-empty"]:
            return "String must be non-empty"
        any_case = " (case insensitive)" if setting.limits.startswith("~") else ""
        return f"String must be one of{any_case}: {', '.join(limits)}"
    if len(limits) > 1:
        low, _, high = limits[1].partition("..")
        return f"Value must be between {low} and {high} or equal to {limits[0]}"
    low, _, high = limits[0].partition("..")
    if low and not value >= float(low):
        return f"Value must be at least {low}"
    return f"Value must be no more than {high}"


def format_value(value: Value) -> str:
    """Return the text of a typed value as Kafka writes it; "" for None (unset)."""
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
    """Format as Java does: 0.5, but 1.0E7 and 1.7976931348623157E308."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value != value or value in (_HUGE, -_HUGE):
        return repr(value).replace("nan", "NaN").replace("inf", "Infinity")
    digits = next(text for text in (f"{value:.{count}e}" for count in range(1, 18))
                  if float(text) == value)
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}E{int(exponent)}"


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
        raise _refused(setting, text, _no_number(setting))
    if len(digits) > 40:
        # Python raises another error for very long numbers.
        raise _refused(setting, f"{text[:40]}...", _no_number(setting))
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _refused(setting, text, _no_number(setting))
    return value


def _fraction(setting: Setting, text: str) -> float:
    try:
        if "_" in text:
            raise ValueError(text)
        return float(text)
    except ValueError:
        raise _refused(setting, text, _no_number(setting)) from None


def _no_number(setting: Setting) -> str:
    return f"Not a number of type {setting.type.upper()}"


def _words(setting: Setting, text: str) -> tuple[str, ...]:
    """Return the words of a list without repetitions, as Kafka does."""
    if not text:
        return ()
    if setting.name in UNIQUE_LISTS and has_repetitions(text):
        raise ConfigError(f"{setting.name} must not contain duplicate tag keys.")
    words = dict.fromkeys(word.strip() for word in text.split(","))
    if "" in words:
        raise ConfigError(f"Configuration '{setting.name}' values must not be empty.")
    return tuple(words)


def has_repetitions(text: str) -> bool:
    """Return True if a list contains an entry twice."""
    words = [word.strip() for word in text.split(",")]
    return len(set(words)) < len(words)


def _refused(setting: Setting, text: str, why: str) -> ConfigError:
    shown = "[hidden]" if setting.type == "password" else text
    return ConfigError(f"Invalid value {shown} for configuration {setting.name}: {why}")
