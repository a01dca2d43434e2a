"""User code named in a configuration as "package.module:Class": recognised here, imported only where that is allowed.

`run`, `compare` and `tune` import the code of a configuration that the user passes. A run directory may come from
another person, so its code is imported only with `--trust-code` (`trust_code=True`).
"""

import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from hashlib import sha256
from importlib import import_module, util
from pathlib import Path
from typing import Any

from fedrecall.errors import UserError, first_line, unknown_name

CODE_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_code_path(name: object) -> bool:
    """Return True if a name is of the form "package.module:Class".

    >>> is_code_path("package.module:Class"), is_code_path("fedavg"), is_code_path("fedlmd:tau=3")
    (True, False, False)
    """
    return isinstance(name, str) and CODE_PATH.fullmatch(name) is not None


def import_object(path: str, key: str) -> Any:
    """Import the object "package.module:name". `key` is the configuration key that names it.

    The current folder is searched last, so that none of its files replaces an installed package. It stays on
    `sys.path`, because worker processes import the module too.
    """
    module_name, _, attributes = path.partition(":")
    _search_current_folder()
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        what = f"there is no module {missing}"
        if missing != module_name and not module_name.startswith(f"{missing}."):
            what = f"{module_name} imports {missing}, which is not installed"
        near = get_close_matches(missing, _sibling_modules(missing), n=1, cutoff=0.5)
        hint = f'did you mean "{near[0]}"?' if near else "install it, or run the command in the folder that has it"
        raise UserError("config.cannot_import", f'{key} = "{path}": {what}', key, hint) from None
    except Exception as error:  # the module is the user's: it may raise anything
        message = f'{key} = "{path}": importing {module_name} fails: {type(error).__name__}: {first_line(error)}'
        raise UserError("config.cannot_import", message, key, f"correct {module_name}") from error
    for name in attributes.split("."):
        if not hasattr(found, name):
            public = [other for other in vars(found) if not other.startswith("_")]
            raise unknown_name(f"name in {module_name}", name, public, key=key)
        found = getattr(found, name)
    return found


def code_hash(path: str, key: str) -> str:
    """Return the SHA-256 of the source of the top-level module or package of "package.module:name".

    Nothing is imported. `key` is the configuration key that names the code.
    """
    _search_current_folder()
    top = path.partition(":")[0].partition(".")[0]
    spec = util.find_spec(top)
    if spec is None:
        hint = "install it, or pack it into the app with fedrecall flower new --module"
        raise UserError("config.cannot_import", f'{key} = "{path}": there is no module {top}', key, hint)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(file.relative_to(folder), file) for folder in folders for file in folder.rglob("*.py")]
    digest = sha256()
    for name, file in sorted(files) or [(Path(top), Path(spec.origin or ""))]:
        content = file.read_bytes() if file.is_file() else b""  # a module without a file is a part of Python
        digest.update(f"{name.as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def check_arguments(function: Callable[..., Any], settings: Mapping[str, Any], table: str) -> None:
    """Raise an error if a class or function does not accept the settings of its table as keyword arguments."""
    name = getattr(function, "__name__", type(function).__name__)
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in settings:
            if key not in parameters:
                raise unknown_name(f"argument of {name}", key, parameters, "config.unknown_key", f"{table}.{key}")
    for key, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if required and parameter.kind is not parameter.VAR_POSITIONAL and key not in settings:
            message = f"{table}.{key}: the key is missing, which {name} needs"
            raise UserError("config.missing_key", message, f"{table}.{key}", "set it")


def untrusted(paths: list[str], where: str) -> UserError:
    """Return the error for code that a directory names and that was not declared trustworthy."""
    message = f"{where}: the configuration names code, which is not imported from a directory: {', '.join(paths)}"
    hint = "pass --trust-code (trust_code=True) if you trust it"
    return UserError("config.untrusted_code", message, where, hint)


def _search_current_folder() -> None:
    """Search the current folder for modules, after the installed ones."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))


def _sibling_modules(name: str) -> list[str]:
    """Return the modules beside one that was not found: those of its package, or those of the current folder."""
    package, _, _ = name.rpartition(".")
    spec = util.find_spec(package) if package else None
    locations = [str(Path.cwd())] if spec is None else list(spec.submodule_search_locations or ())
    prefix = f"{package}." if package else ""
    return [prefix + module.name for module in pkgutil.iter_modules(locations)]
