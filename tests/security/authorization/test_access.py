"""The authorizer named by the settings, and errors when it cannot be created."""

import pytest

from pylog.config import Settings
from pylog.config.errors import ConfigError
from pylog.security.authorization.access import STANDARD, authorizer_of
from pylog.security.authorizer import Authorizer, Decision, StandardAuthorizer
from pylog.security.authorization.authorizer_guard import AuthorizerGuard


class Whole(Authorizer):
    def __init__(self, settings):
        pass

    def authorize(self, *asked):
        return Decision(True, None, "whole")

    def authorize_any(self, *asked):
        return Decision(True, None, "whole")

    def take(self, security, changed):
        return None


class Part(Authorizer):
    def take(self, security, changed):
        return None


class Failing(Whole):
    def __init__(self, settings):
        raise RuntimeError("nobody answers")


class WithoutSettings(Whole):
    def __init__(self):
        pass


def made(name: str):
    return authorizer_of(Settings({"authorizer.class.name": name}), lambda: 0)


def test_custom_authorizers_are_wrapped_and_kafkas_is_not():
    assert made("") is None
    assert type(made(STANDARD)) is StandardAuthorizer
    assert type(made(f"{__name__}:Whole")) is AuthorizerGuard


@pytest.mark.parametrize("name,words", [
    ("com.acme.Authorizer", "expected org.apache.kafka.*, or module:class"),
    (f"{__name__}:", "or module:class"),
    ("nobody.has.this:Rules", "ModuleNotFoundError: No module named 'nobody'"),
    (f"{__name__}:Missing", "has no attribute 'Missing'"),
    (f"{__name__}:made", "no pylog.security.authorizer.Authorizer"),
    (f"{__name__}:Part", "it lacks authorize, authorize_any$"),
    (f"{__name__}:Failing", "RuntimeError: nobody answers"),
    (f"{__name__}:WithoutSettings", "TypeError: .*takes 1 positional argument"),
])
def test_failing_authorizer_class_is_rejected_with_the_reason(name, words):
    with pytest.raises(ConfigError, match=f"^authorizer.class.name={name}: .*{words}"):
        made(name)
