"""A count of what was tried and what was lost, printed whatever pytest captures."""

from collections.abc import Callable, Iterator

import pytest


class Tally:
    """How many times something was tried, and how often data was lost."""

    def __init__(self, subject: str) -> None:
        self.subject, self.tried, self.lost = subject, 0, list[str]()
        self.notes: dict[str, int] = {}

    def add(self, lost: str = "") -> None:
        """One more try; `lost` says what was lost, if anything was."""
        self.tried += 1
        if lost:
            self.lost.append(lost)

    def note(self, subject: str) -> None:
        """Count something else worth knowing."""
        self.notes[subject] = self.notes.get(subject, 0) + 1


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], Tally]]:
    """Begin a count; at the end it is printed, and nothing may be lost."""
    tallies: list[Tally] = []

    def start(subject: str) -> Tally:
        tallies.append(Tally(subject))
        return tallies[-1]

    yield start
    for count in tallies:
        notes = "".join(f", {number} {subject}" for subject, number in count.notes.items())
        with capsys.disabled():
            print(f"\n{count.subject}: tried {count.tried}, lost {len(count.lost)}{notes}")
        assert count.lost == []
        assert count.tried > 0
