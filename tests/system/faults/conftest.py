"""A count of what was tried and what was lost, printed whatever pytest captures."""

from collections.abc import Callable, Iterator

import pytest


class Tally:
    """How many times something was tried, and how often data was lost."""

    def __init__(self, what: str) -> None:
        self.what, self.tried, self.lost = what, 0, list[str]()
        self.notes: dict[str, int] = {}

    def add(self, lost: str = "") -> None:
        """One more try; `lost` says what was lost, if anything was."""
        self.tried += 1
        if lost:
            self.lost.append(lost)

    def note(self, what: str) -> None:
        """Count something else worth knowing."""
        self.notes[what] = self.notes.get(what, 0) + 1


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], Tally]]:
    """Begin a count; at the end it is printed, and nothing may be lost."""
    begun: list[Tally] = []

    def begin(what: str) -> Tally:
        begun.append(Tally(what))
        return begun[-1]

    yield begin
    for count in begun:
        notes = "".join(f", {number} {what}" for what, number in count.notes.items())
        with capsys.disabled():
            print(f"\n{count.what}: tried {count.tried}, lost {len(count.lost)}{notes}")
        assert count.lost == []
        assert count.tried > 0
