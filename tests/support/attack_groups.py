"""Counts of attacks by group: how many were tried, held and lost. `pytest --count-attacks` prints them.

A test is one attack, unless it counts its own with the fixture `tally`.
"""

from collections import Counter
from pathlib import PurePath

import pytest

ATTACKS = "attacks"  # user property of a test with its own counts: (tried, lost)

GROUPS = {
    "replies and reports": (
        "core/test_reply_validation.py",
        "system/test_rejected_replies.py",
        "system/faults/test_lies.py",
        "flower/test_codec.py",
        "flower/test_messages.py",
    ),
    "reasons of nodes": ("flower/test_reasons.py",),
    "numbers of examples": ("core/test_preaggregation.py", "flower/test_engine.py"),
    "robust rules": (
        "core/test_reply_distances.py",
        "core/test_robust.py",
        "core/test_byzfl.py",
        "system/test_robust.py",
    ),
    "colluding attackers": ("simulation/test_collusion.py",),
    "privacy": ("system/test_privacy.py",),
    "killed and stopped processes": ("simulation/test_failures.py", "system/faults/test_kill.py"),
    "run directories and disks": (
        "runs/test_directory.py",
        "studies/test_extend.py",
        "system/faults/test_damage.py",
    ),
    "Ray of a run": ("simulation/ray/test_runs.py",),
    "limits, numbers and users' code": ("system/test_limits.py",),
    "certificates": ("flower/test_certificates.py",),
    "files of others": (
        "system/test_decoders.py",
        "system/test_hostile_files.py",
        "system/faults/test_fuzz.py",
    ),
    "a federation on Flower's processes": ("flower/test_deployment.py",),
}


def group_of(nodeid: str) -> str:
    """Return the group of a test, or the name of its file."""
    file = PurePath(nodeid.partition("::")[0])
    for group, files in GROUPS.items():
        if any(file.match(f"tests/{name}") for name in files):
            return group
    return str(file)


class AttackCounts:
    """Plugin of pytest that counts attacks and prints a table at the end."""

    def __init__(self) -> None:
        self.tried, self.lost, self.skipped = Counter[str](), Counter[str](), Counter[str]()
        self._outcomes: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be imported here, or cannot be imported at all."""
        if report.nodeid.endswith(".py") and report.outcome != "passed":
            (self.skipped if report.outcome == "skipped" else self.lost)[group_of(report.nodeid)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the worst outcome of a test's phases; count it after the last one."""
        if report.outcome != "passed":
            self._outcomes.setdefault(report.nodeid, report.outcome)
        if report.when == "teardown":
            self._count(report.nodeid, self._outcomes.pop(report.nodeid, "passed"), dict(report.user_properties))

    def _count(self, nodeid: str, outcome: str, properties: dict[str, object]) -> None:
        group = group_of(nodeid)
        if outcome == "skipped":
            self.skipped[group] += 1
            return
        tried, lost = properties.get(ATTACKS) or (1, 0)  # type: ignore[misc]
        self.tried[group] += max(1, tried)
        self.lost[group] += max(lost, outcome == "failed")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line for each group."""
        terminalreporter.section("attacks")
        for group in [*GROUPS, *sorted({*self.tried, *self.lost, *self.skipped} - GROUPS.keys())]:
            tried, lost, skipped = self.tried[group], self.lost[group], self.skipped[group]
            if tried or lost or skipped:
                note = f", {skipped} tests or files skipped" if skipped else ""
                terminalreporter.line(f"{group}: tried {tried}, held {tried - lost}, lost {lost}{note}")
        total, lost = self.tried.total(), self.lost.total()
        terminalreporter.line(f"all: tried {total}, held {total - lost}, lost {lost}")
