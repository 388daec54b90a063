"""What each FlashInfer release does: the tables under `compat/`, read late and checked when read.

A wheel carries them as `fi_shim/_compat`; an editable install reads the checkout's. `FI_SHIM_COMPAT` names an overlay folder of the
same layout whose files replace or add to the packaged ones; what of it cannot be used is passed over.
"""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fi_shim.tables import KINDS, CompatibilityError, check_word, folders, locate, pass_over, passed_over, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from packaging.version import Version

__all__ = [
    "CompatibilityError", "Release", "UnknownReleaseError", "check_overlay", "find_release", "folders", "known_releases",
    "load_patch_functions", "load_release", "passed_over", "release_path",
]  # fmt: skip

REFUSED = "refused"  # a backend that the release does not build in that mode
_RULES = ("handle_type", "device", "legacy_creator")  # without them nothing can be probed
_KNOWN_RULES = {"handle_type": ("rank", "group"), "device": ("rank", "current")}


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


def known_releases() -> tuple[str, ...]:
    """All releases with a table that can be used, oldest first."""
    from packaging.version import InvalidVersion, Version

    everywhere = folders()
    packaged, versions = everywhere[-1], dict[Version, str]()
    for folder in everywhere:
        for path in (folder / "releases").glob("*.toml"):
            try:
                version = Version(path.stem)
            except InvalidVersion as error:
                wrong = CompatibilityError(f"{path}: the file's name is not a version")
                if folder == packaged:
                    raise wrong from error
                pass_over(path, wrong)
                continue
            if folder == packaged or (packaged / "releases" / path.name).is_file() or _is_usable(path.stem):
                versions.setdefault(version, path.stem)
    if not versions:
        raise CompatibilityError(f"{packaged}: no release tables there")
    return tuple(versions[version] for version in sorted(versions))


def _is_usable(name: str) -> bool:
    try:
        release_path(name)
    except CompatibilityError:
        return False
    return True


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


def release_path(name: str) -> Path:
    """The file that `load_release` reads. CompatibilityError if there is none."""
    return locate("releases", name, _overlay_release)


def load_release(name: str) -> Release:
    """Read `releases/<name>.toml`. CompatibilityError if it is missing or wrong."""
    return _release(release_path(name))


def _overlay_release(path: Path) -> None:
    """All that a release needs, before it takes the place of a packaged one. CompatibilityError names what is wrong."""
    from fi_shim.workspace.sizes import load_regime  # which is built upon this module

    release = _release(path)
    for backend, name in (*release.regimes.items(), *release.confidential.items(), ("trtllm", release.rules["legacy_creator"])):
        if name == REFUSED:
            continue
        try:
            regime = load_regime(name)
        except CompatibilityError as error:
            raise CompatibilityError(f"{path}: regime {name!r}: {error}") from None
        if regime.backend != backend:
            raise CompatibilityError(f"{path}: regime {name!r} is one of {regime.backend}, not of {backend}")


def _release(path: Path) -> Release:
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
    if release.version != path.stem:
        raise CompatibilityError(f"{path}: says version {release.version!r}, its name says {path.stem!r}")
    for rule, values in _KNOWN_RULES.items():
        check_word(path, rule, release.rules[rule], values)
    return release


def load_patch_functions(name: str) -> dict[str, tuple[str, ...]]:
    """Of `patches/<name>.toml`, the code that a patch was written against: qualified name -> fingerprints. CompatibilityError."""
    return _patch_functions(locate("patches", name, _patch_functions))


def _patch_functions(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {key: tuple(map(_text, digests)) for key, digests in read_table(path)["functions"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CompatibilityError(f"{path}: {_complaint(error)}") from None


def check_overlay() -> tuple[str, ...]:
    """Look at all that the overlay in force has. Returns what of it cannot be used, one sentence each."""
    from fi_shim.workspace.sizes import load_regime

    loads = {"releases": load_release, "regimes": load_regime, "patches": load_patch_functions}
    for path in sorted(path for folder in folders()[:-1] for kind in KINDS for path in (folder / kind).glob("*.toml")):
        with contextlib.suppress(CompatibilityError):
            loads[path.parent.name](path.stem)
    with contextlib.suppress(CompatibilityError):
        known_releases()
    return passed_over()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _complaint(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
