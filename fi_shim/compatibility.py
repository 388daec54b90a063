"""What each FlashInfer release does: the tables under `compat/`, read late and checked when read.

A wheel carries them as `fi_shim/_compat`; an editable install reads the checkout's. `FI_SHIM_COMPAT` names an overlay folder of the
same layout whose files replace or add to the packaged ones.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

REFUSED = "refused"  # a backend that the release does not build in that mode
_RULES = ("handle_type", "device", "legacy_creator")  # without them nothing can be probed


class CompatibilityError(ValueError):
    """A compat table is missing, cannot be read or does not say what it must; the text names the file."""


class UnknownReleaseError(ValueError):
    """No table describes this FlashInfer release."""


@dataclass(frozen=True)
class Release:
    """The table of one FlashInfer release."""

    version: str
    regimes: Mapping[str, str]
    """backend -> regime name."""
    confidential: Mapping[str, str]
    """backend -> regime name under confidential computing, or REFUSED; empty: the release does not ask."""
    functions: Mapping[str, str]
    """qualified name -> fingerprint of the code that was read."""
    rules: Mapping[str, str]
    """handle_type: decided by each "rank" or by the "group"; device: "current" or numbered by "rank"; legacy_creator: a regime;
    metadata: keys of a workspace's metadata, in order."""
    files: Mapping[str, str]
    """path inside the wheel -> SHA-256."""
    witnesses: Mapping[str, tuple[Mapping[str, Any], ...]]
    """backend -> shapes with the bytes that the release itself asked for."""
    importable: str | None
    """None, or why it cannot be imported on some Pythons."""

    def regime_name(self, backend: str, *, confidential_computing: bool) -> str:
        """Name of the regime that sizes `backend`. ValueError where the release refuses to build it."""
        name = self.regimes[backend]
        if confidential_computing:
            name = self.confidential.get(backend, name)
        if name == REFUSED:
            raise ValueError(f"backend={backend!r}: FlashInfer {self.version} refuses it under confidential computing")
        return name


def folders(overlay: str | None = None) -> tuple[Path, ...]:
    """Where the tables are read from, first match wins: the overlay (default: FI_SHIM_COMPAT), then the packaged tables.

    CompatibilityError if the overlay is no folder.
    """
    packaged = Path(__file__).with_name("_compat")
    if not packaged.is_dir():
        packaged = Path(__file__).parent.parent / "compat"
    overlay = os.environ.get("FI_SHIM_COMPAT") if overlay is None else overlay
    if overlay and not Path(overlay).is_dir():
        raise CompatibilityError(f"{overlay}: FI_SHIM_COMPAT is not a folder")
    return (Path(overlay), packaged) if overlay else (packaged,)


def known_releases() -> tuple[str, ...]:
    """All releases with a table, oldest first."""
    from packaging.version import InvalidVersion, Version

    versions: dict[Version, str] = {}
    for folder in folders():
        for path in (folder / "releases").glob("*.toml"):
            try:
                versions.setdefault(Version(path.stem), path.stem)
            except InvalidVersion as error:
                raise CompatibilityError(f"{path}: the file's name is not a version") from error
    if not versions:
        raise CompatibilityError(f"{' and '.join(map(str, folders()))}: no release tables there")
    return tuple(versions[version] for version in sorted(versions))


def find_release(version: str) -> Release:
    """The table of `version`; a local label (`+cu130`) is ignored. UnknownReleaseError names the nearest known ones."""
    from packaging.version import InvalidVersion, Version

    known = known_releases()
    try:
        wanted: Version | None = Version(version)
    except (InvalidVersion, TypeError):
        wanted = None
    if wanted is not None:
        public = Version(wanted.public)
        for name in known:
            if Version(name) == public:
                return load_release(name)
    raise UnknownReleaseError(
        f"flashinfer_version={version!r} is not a known release; nearest known: {', '.join(_nearest(str(version), wanted, known))}"
    )


def _nearest(text: str, wanted: Version | None, known: tuple[str, ...]) -> list[str]:
    from packaging.version import Version

    if wanted is None:
        return difflib.get_close_matches(text, known, n=2, cutoff=0.0)
    below = [name for name in known if Version(name) < wanted]
    above = [name for name in known if Version(name) > wanted]
    return below[-1:] + above[:1]


def load_release(name: str) -> Release:
    """Read `releases/<name>.toml`. CompatibilityError if it is missing or wrong."""
    path = _locate("releases", name)
    table = read_table(path)
    try:
        release = Release(
            version=_text(table["version"]),
            regimes={backend: _text(table["regimes"][backend]) for backend in ("trtllm", "mnnvl")},
            confidential={key: _text(value) for key, value in table.get("confidential_computing", {}).items()},
            functions={key: _text(value) for key, value in table.get("functions", {}).items()},
            rules={key: _text(table["rules"][key]) for key in dict.fromkeys((*_RULES, *table["rules"]))},
            files={key: _text(value) for key, value in table.get("files", {}).items()},
            witnesses={backend: tuple(table.get("witness", {}).get(backend, ())) for backend in ("trtllm", "mnnvl")},
            importable=table.get("importable"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CompatibilityError(f"{path}: {_complaint(error)}") from None
    if release.version != name:
        raise CompatibilityError(f"{path}: says version {release.version!r}, its name says {name!r}")
    return release


def load_regime_table(name: str) -> tuple[Path, dict[str, Any]]:
    """The raw table of a regime and the file it came from."""
    path = _locate("regimes", name)
    return path, read_table(path)


def load_patch_table(name: str) -> dict[str, Any]:
    """The table `patches/<name>.toml`: the code that a patch was written against."""
    return read_table(_locate("patches", name))


def _locate(kind: str, name: str) -> Path:
    for folder in folders():
        path = folder / kind / f"{name}.toml"
        if path.is_file():
            return path
    raise CompatibilityError(f"{folders()[-1] / kind / name}.toml: no such table")


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, _changed_ns: int) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with path.open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)
        return table


def read_table(path: Path) -> dict[str, Any]:
    """Parse one TOML file; CompatibilityError with the file's name if that fails."""
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
        raise CompatibilityError(f"{path}: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _complaint(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
