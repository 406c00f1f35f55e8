"""Printed kernels on disk: atomic, private, keyed by text and versions; damage is a miss."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from types import ModuleType

ENVIRONMENT = "FUSEDREDUCE_CACHE_DIR"
SCHEMA = 1  # raised when the meaning of an entry changes


def folder() -> Path:
    """Where printed kernels lie: $FUSEDREDUCE_CACHE_DIR, or the user's cache folder."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fusedreduce"


def digest(source: str, versions: tuple[str, ...]) -> str:
    """A short hash of the text and of what gives it meaning."""
    text = "\n".join((str(SCHEMA), *versions, source))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def load(name: str, source: str, versions: tuple[str, ...]) -> ModuleType:
    """The module with this source; the file is `<name>__<hash>.py`."""
    key = digest(source, versions)
    try:
        path = store(folder() / f"{name}__{key}.py", source)
    except OSError:  # a read-only or full disk: keep the text in memory
        return in_memory(f"{name}__{key}", source)
    return imported(f"fusedreduce_printed.{name}__{key}", path)


def store(path: Path, source: str) -> Path:
    """Write the file unless it is there with the same text; others may do so at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_shared(path.parent)
    text = source.encode()
    if path.exists() and path.read_bytes() == text:
        return path
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
    return path


def refuse_shared(directory: Path) -> None:
    """Code is run from here: a folder that others can write to is not used."""
    status = directory.stat()
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise PermissionError(f"{directory} belongs to somebody else or is writable by others")


def imported(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    previous, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = previous
    return module


def in_memory(name: str, source: str) -> ModuleType:
    """Triton reads source through the line cache when there is no file."""
    filename = f"<fusedreduce {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module = ModuleType(name)
    module.__file__ = filename
    exec(compile(source, filename, "exec"), module.__dict__)
    return module
