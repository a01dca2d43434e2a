"""Check of the one line that bad input gets."""

from collections.abc import Callable

import pytest

from fedrecall.errors import UserError


def refused(call: Callable[[], object], code: str, *facts: str) -> str:
    """Return the message of the error that a call raises, after a check of its code, its line and its facts."""
    with pytest.raises(UserError) as error:
        call()
    message = str(error.value)
    assert error.value.code == code, message
    assert "\n" not in message
    assert all(fact in message for fact in facts), message
    return message
