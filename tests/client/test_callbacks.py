"""Application functions on an event loop: their exceptions do not affect the client."""

import asyncio

import pytest

from pylog.client.callbacks import call


def raising(failure):
    def function(*given):
        raise failure

    return function


@pytest.mark.parametrize("failure", [ValueError("planted"), asyncio.CancelledError("planted"),
                                     GeneratorExit("planted")])
def test_callback_exception_is_logged(failure, caplog):
    async def main():
        call("a callback", raising(failure), 1)
        await asyncio.sleep(0)
        return "continued"

    assert asyncio.run(main()) == "continued"
    assert "a callback failed" in caplog.text and "planted" in caplog.text


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt("planted")])
def test_an_exit_ends_the_loop_of_the_application_after_the_call(failure, caplog):
    states = []

    async def main():
        call("a callback", raising(failure))
        states.append("complete")
        await asyncio.sleep(30)

    with pytest.raises(type(failure)):
        asyncio.run(main())
    assert states == ["complete"]


def test_a_callback_without_a_loop_is_called_too(caplog):
    heard = []
    call("a callback", heard.append, 1)
    call("a callback", raising(SystemExit(1)))
    assert heard == [1] and "SystemExit" in caplog.text
