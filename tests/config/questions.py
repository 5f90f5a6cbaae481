"""The values of settings that tests compare with Kafka: at their limits, beyond them, and odd ones.

Used by test_against_kafka (Kafka's classes) and tests/wire/test_differential_settings (a running
Kafka).
"""

from pylog.config import catalogue, values

HUGE = {"short": 2**15 - 1, "int": 2**31 - 1, "long": 2**63 - 1}
WORDS = {
    "boolean": ["true", "TRUE", "yes"], "string": ["", "x", "none"], "class": ["x.y.Z"],
    "password": ["", "x"], "list": ["", " ", "x", "x,x", "x,,y", ",", "*", "*,x"],
    "double": ["-1", "-0.001", "0", "0.5", "1", "1.0001", "Infinity", "1e400", "", "x"],
}


def texts_of(setting: catalogue.Setting) -> list[str]:
    """Return the texts to try on a setting."""
    if setting.type in HUGE:
        huge = HUGE[setting.type]
        numbers = {-2, -1, 0, 1, 2, 1000, huge, huge + 1, -huge - 1, -huge - 2}
        for limit in values.limits_of(setting):
            for end in filter(None, limit.split("..")):
                numbers |= {int(end) - 1, int(end), int(end) + 1}
        if setting.default is not None:
            default = setting.default
            numbers |= {default - 1, default, default + 1, default * 2 + 1, default // 2 - 1}
        return [str(number) for number in sorted(numbers)] + ["", "x"]
    texts = list(WORDS[setting.type])
    if setting.type in ("string", "list"):
        for word in values.limits_of(setting):
            texts += [word, word.upper(), word.lower(), f"{word},{word}"]
    return texts


def kafkas_broker_settings() -> list[str]:
    """Return names of all broker settings except pylog's own."""
    own = {row[0] for row in catalogue.OWN}
    return [name for name in catalogue.broker_names() if name not in own]
