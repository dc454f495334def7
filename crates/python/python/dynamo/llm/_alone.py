"""Refuses to share the name `dynamo` with the original package: files of both would lie in one folder, and calls would reach either."""

from importlib import metadata
from pathlib import Path

_ORIGINAL = ("ai-dynamo-runtime", "ai-dynamo")


def check() -> None:
    """Raises `ImportError` if the original package is installed, or another one that brings a package `dynamo`."""
    for name in _ORIGINAL:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        raise ImportError(_message(f"{name} {version} is installed"))
    import dynamo

    for folder in dynamo.__path__:
        for foreign in ("__init__.py", "_core.abi3.so", "runtime"):
            if Path(folder, foreign).exists():
                raise ImportError(_message(f"{folder} has a {foreign} of another package"))


def _message(reason: str) -> str:
    return f"dynamo-llm cannot be used beside the original dynamo package: {reason}. Use an environment of its own, or uninstall one of both"
