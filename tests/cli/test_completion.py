"""Shell completion, by running the program as a shell does."""

import os
import subprocess
import sys

import pytest

from fedrecall import METHODS
from fedrecall.cli import completion
from fedrecall.data.catalog import DATASETS
from fedrecall.studies.definitions import experiment_ids


def complete_in_bash(*words: str) -> list[str]:
    """Return the completions of the last word in bash."""
    environment = {
        "_FEDRECALL_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'fedrecall'; from fedrecall.cli import main; main()"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rep"], ["reproduce", "report"]),
        (["show", "par"], ["partitions", "partition"]),
        (["compare", "fedlm"], ["fedlmd", "fedlmd-tf"]),
        (["tune", "moo"], ["moon"]),
        (["reproduce", "fedlmd-table-"], [f"fedlmd-table-{i}" for i in range(1, 6)]),
        (["init", "--data", "cifar"], ["cifar10", "cifar100"]),
        (["init", "--method", "fedcs"], ["fedcsd"]),
        (["doctor", "--explain", "report.missing_p"], ["report.missing_probe"]),
        (["run", "--set", "local.l"], ["local.lr=", "local.lr_decay="]),
        (["run", "--set", "engine.name", "=", "s"], ["serial"]),  # bash breaks words at "="
        (["run", "--set", "model.name", "="], ["cnn", "cnn-32-64"]),
        (["run", "--set", "run.rounds", "=", "3", "--re"], ["--resume"]),
        (["run", "--set", "federation.partition.na"], [f"federation.partition.name={n}" for n in ("iid", "dirichlet")]),
    ],
)
def test_bash(words: list[str], expected: list[str]) -> None:
    assert complete_in_bash("fedrecall", *words)[: len(expected)] == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_show_descriptions(shell: str) -> None:
    environment = {"_FEDRECALL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "fedrecall compare fedlmd-"}
    environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_WORD_TO_COMPLETE": "fedlmd-"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'fedrecall'; from fedrecall.cli import main; main()"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=60
    )
    assert "fedlmd-tf" in done.stdout
    assert completion.complete_methods("fedlmd-tf")[0][1][:20] in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell(shell: str) -> None:
    environment = {"_FEDRECALL_COMPLETE": f"source_{shell}"}
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'fedrecall'; from fedrecall.cli import main; main()"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=60
    )
    assert f"complete_{shell}" in done.stdout


def test_names_are_those_of_the_library() -> None:
    assert [name for name, _ in completion.complete_methods("")] == list(METHODS)
    assert [name for name, _ in completion.complete_datasets("")] == list(DATASETS)
    assert completion.complete_experiments("") == experiment_ids()
    assert completion.complete_settings("method.name=fedlmd") == [
        ("method.name=fedlmd", ""),
        ("method.name=fedlmd-tf", ""),
    ]
    assert completion.complete_settings("local.drop_last=t") == [("local.drop_last=true", "")]
    assert completion.complete_settings("nothing.such") == []


PROGRAM = """
import sys
from fedrecall.cli import completion
assert completion.complete_settings("method.")
print(*sorted({"torch", "pydantic", "numpy"} & set(sys.modules)))
"""


def test_completion_imports_neither_torch_nor_pydantic() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
