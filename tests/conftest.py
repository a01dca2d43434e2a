import os
from pathlib import Path

import pytest
import torch

from fedrecall.core.precision import ONEDNN_LIMIT, WITHOUT_AMX, amx_traps, bf16_instructions

torch.set_num_threads(1)  # two test processes share two cores

if amx_traps():  # tests of bf16 run on AVX512 there; before the first operation, at which oneDNN reads the variable
    os.environ[ONEDNN_LIMIT] = WITHOUT_AMX
    bf16_instructions.cache_clear()
    amx_traps.cache_clear()

SHARED = Path(os.environ.get("FEDRECALL_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory):
    """Write decoded data to a folder of this test run, never to the user's cache."""
    before = os.environ.get("FEDRECALL_CACHE")
    os.environ["FEDRECALL_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["FEDRECALL_CACHE"]
    else:
        os.environ["FEDRECALL_CACHE"] = before


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real data sets; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the real data sets: set FEDRECALL_DATA (looked in {SHARED})")
    return SHARED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden runs anew")
    parser.addoption("--method", help="run only the tests of this method in tests/methods")
    parser.addoption("--count-attacks", action="store_true", help="print how many attacks were tried, held and lost")
    parser.addoption("--add-golden-bits", action="store_true", help="record the golden bits of this kind of processor")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (method := config.getoption("--method")) is None:
        return
    folder, names = Path(__file__).parent / "methods", (method, method.replace("-", "_"))
    items[:] = [i for i in items if not i.path.is_relative_to(folder) or any(name in i.nodeid for name in names)]


def pytest_configure(config: pytest.Config) -> None:
    if (method := config.getoption("--method")) is not None:
        from fedrecall import METHODS

        if method not in METHODS:
            raise pytest.UsageError(f"--method {method}: not a method ({', '.join(METHODS)})")
    if config.getoption("--count-attacks"):
        from support.attack_groups import AttackCounts

        config.pluginmanager.register(AttackCounts())
