"""Counts of trials and losses, printed even if pytest captures output."""

from collections.abc import Callable, Iterator

import pytest

from support.attack_groups import ATTACKS


class Tally:
    """Number of trials, and of those that lost data."""

    def __init__(self, subject: str) -> None:
        self.subject, self.tried, self.lost = subject, 0, list[str]()
        self.notes: dict[str, int] = {}

    def add(self, lost: str = "") -> None:
        """Count a trial; `lost` describes what was lost, if anything was."""
        self.tried += 1
        if lost:
            self.lost.append(lost)

    def note(self, subject: str) -> None:
        """Count another fact."""
        self.notes[subject] = self.notes.get(subject, 0) + 1


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[Callable[[str], Tally]]:
    """Return a function that starts a count, which is printed at the end; no trial may lose data."""
    tallies: list[Tally] = []

    def start(subject: str) -> Tally:
        tallies.append(Tally(subject))
        return tallies[-1]

    yield start
    counts = sum(count.tried for count in tallies), sum(len(count.lost) for count in tallies)
    request.node.user_properties.append((ATTACKS, counts))
    for count in tallies:
        notes = "".join(f", {number} {subject}" for subject, number in count.notes.items())
        with capsys.disabled():
            held = count.tried - len(count.lost)
            print(f"\n{count.subject}: tried {count.tried}, held {held}, lost {len(count.lost)}{notes}")
        assert count.lost == []
        assert count.tried > 0
