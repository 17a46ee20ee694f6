"""What a lock pins is installed and nothing else, whatever day it is and whenever an install was interrupted.

The real Makefile and the real script run in a tiny project, and a folder of tiny wheels is the index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from homing.testing.components.processes import wait_until

REPOSITORY = Path(__file__).parent.parent
#: The interpreter behind our own .venv.
PYTHON = Path(sys.executable).resolve()
UV = Path(sys.executable).with_name("uv")
INSTALLERS = ["pip", "uv"] if UV.exists() else ["pip"]
INSTALLED, INSTALLED_DEV = ".venv/.installed", ".venv/.installed-dev"
WHEEL = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1.0"
"""
#: Each of these hangs where the test wants it, and tells so. The first builds the tiny project.
BACKEND = """
import os
import shutil
import signal
from pathlib import Path

def build_editable(folder, config_settings=None, metadata_directory=None):
    if os.environ.get("HANG") == "packages":
        Path("hangs").touch()
        signal.pause()
    return Path(shutil.copy("../index/tiny-1.0-py3-none-any.whl", folder)).name
"""
#: Making a .venv with pip takes seconds, so there is a ready one to copy.
PYTHON_WITH_VENV = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec "{python}" "$@"
set -e
rm -rf .venv/bin .venv/lib
mkdir -p .venv
cp -Rp "{venv}/pyvenv.cfg" "{venv}/bin" .venv
[ "$HANG" != venv ] || {{ : >hangs; exec sleep 600; }}
cp -Rp "{venv}/lib" .venv
"""
TOUCH = """#!/bin/sh
[ "$HANG" != mark ] || {{ : >hangs; exec sleep 600; }}
exec "{touch}" "$@"
"""
DEAD_UV = "#!/bin/sh\necho 'uv: command not found' >&2\nexit 127\n"
#: Registers a package that it does not unpack.
FAILING_UV = """#!/bin/sh
[ "$1" != --version ] || exit 0
for packages in .venv/lib/python*/site-packages; do
    mkdir "$packages/driver-1.0.dist-info"
    printf 'Metadata-Version: 2.1\\nName: driver\\nVersion: 1.0\\n' >"$packages/driver-1.0.dist-info/METADATA"
done
exit 1
"""
#: Whoever runs tests in the background may have had SIGINT ignored.
HEARS_INTERRUPTS = (
    "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)

slow = pytest.mark.slow
with_each = pytest.mark.parametrize("installer", INSTALLERS)
with_the_quickest = pytest.mark.parametrize("installer", INSTALLERS[-1:])


class Project:
    """A folder with our Makefile and install.sh, the index beside it, and at most one make that runs."""

    def __init__(self, home: Path, installer: str, python: str) -> None:
        self.root = home / "project"
        self.index = home / "index"
        self.tools = home / "tools"
        for folder in (self.root / "scripts", self.index, self.tools):
            folder.mkdir(parents=True)
        for name in ("Makefile", "scripts/install.sh"):
            shutil.copy(REPOSITORY / name, self.root / name)
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        self.tool("touch", TOUCH.format(touch=shutil.which("touch")))
        if installer == "uv":
            (self.tools / "uv").symlink_to(UV)
        else:
            self.tool("uv", DEAD_UV)
        self.environment = {
            "HOME": str(home),
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "PYTHON": python,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "UV_NO_CONFIG": "1",
            "UV_OFFLINE": "1",
            "UV_FIND_LINKS": str(self.index),
        }
        self._process: subprocess.Popen[str] | None = None

    def tool(self, name: str, script: str) -> str:
        path = self.tools / name
        path.write_text(script)
        path.chmod(0o755)
        return str(path)

    # --- its index and its locks

    def release(self, name: str, version: str, *fields: str) -> str:
        """Put a wheel into the index, and return the line of a lock that pins it."""
        path = self.index / f"{name}-{version}-py3-none-any.whl"
        folder = f"{name}-{version}.dist-info"
        metadata = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *fields)
        files = {
            f"{name}.py": f'version = "{version}"\n',
            f"{folder}/METADATA": "\n".join(metadata) + "\n",
            f"{folder}/WHEEL": WHEEL,
        }
        record = "".join(f"{file},,\n" for file in (*files, f"{folder}/RECORD"))
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in {**files, f"{folder}/RECORD": record}.items():
                archive.writestr(file, text)
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"

    def pinned(self, name: str) -> list[str]:
        return (self.root / name).read_text().splitlines()

    def lock(self, name: str, *lines: str) -> None:
        """Write a lock, and see to it that any mark is older, however fast the test is."""
        (self.root / name).write_text("".join(f"{line}\n" for line in lines))
        for mark in self.marks():
            os.utime(self.root / mark, (1_000_000_000, 1_000_000_000))

    # --- make in it

    def make(self, target: str = INSTALLED) -> str:
        """What a make that ends well says."""
        code, output = self.try_make(target)
        assert code == 0, output
        return output

    def try_make(self, target: str = INSTALLED) -> tuple[int, str]:
        """The exit code of a make, and what it says."""
        process = self._start(target)
        output, _ = process.communicate()
        return process.returncode, output

    def interrupt(self, moment: str, number: signal.Signals, target: str = INSTALLED) -> None:
        """Let a make come to this moment, and send the signal to all of its processes, as a terminal does."""
        hangs = self.root / "hangs"
        process = self._start(target, moment)
        wait_until(lambda: hangs.exists() or process.poll() is not None, "coming to the moment", 180)
        assert process.poll() is None, process.communicate()[0]
        hangs.unlink()
        os.killpg(process.pid, number)
        process.communicate()
        assert process.returncode != 0

    def _start(self, target: str, hang: str = "") -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEARS_INTERRUPTS, "make", target],
            cwd=self.root,
            env={**self.environment, "HANG": hang},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self._process

    def end(self) -> None:
        if self._process is None:
            return
        with self._process as process:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    # --- what is in its .venv

    def marks(self) -> set[str]:
        return {mark for mark in (INSTALLED, INSTALLED_DEV) if (self.root / mark).exists()}

    def installed(self, pattern: str) -> list[Path]:
        """The files and folders of this name among the packages."""
        return list(self.root.glob(f".venv/lib/python*/site-packages/{pattern}"))

    def tear(self, module: str) -> None:
        """Leave of this package what a kill leaves on a bad day: it is registered, and not all there."""
        for path in self.installed(f"{module}.py"):
            path.unlink()

    def version(self, name: str) -> str:
        """Which version can be imported."""
        command = [str(self.root / ".venv/bin/python"), "-I", "-c", f"import {name}; print({name}.version)"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def python_with_venv(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([PYTHON, "-m", "venv", folder / "venv"], check=True)
    path = folder / "python"
    path.write_text(PYTHON_WITH_VENV.format(python=PYTHON, venv=folder / "venv"))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def installer() -> str:
    return "pip"


@pytest.fixture
def project(tmp_path: Path, installer: str, python_with_venv: str) -> Iterator[Project]:
    """What happened to us: asker wants an extra of driver, which has a newer release than the pinned one."""
    project = Project(tmp_path, installer, python_with_venv)
    pool = ("Provides-Extra: pool", "Requires-Dist: swimmer; extra == 'pool'")
    project.release("tiny", "1.0", "Requires-Dist: asker")
    project.release("driver", "1.1", *pool)
    pinned = (
        project.release("asker", "1.0", "Requires-Dist: driver[pool]"),
        project.release("driver", "1.0", *pool),
        project.release("swimmer", "1.0"),
        # A lock is for every system, so it names what is for another one only.
        f"elsewhere==1.0 ; sys_platform == 'win32' --hash=sha256:{'0' * 64}",
    )
    project.lock("requirements.lock", *pinned)
    project.lock("requirements-dev.lock", *pinned, project.release("judge", "1.0"))
    yield project
    project.end()


@slow
@with_each
def test_takes_the_pinned_versions_whatever_the_index_has(project: Project, installer: str) -> None:
    project.environment["PYTHON"] = str(PYTHON)
    assert project.make().splitlines() == [
        f"making .venv with {PYTHON} ...",
        "installing 4 pinned packages into .venv ...",
        ".venv is ready",
    ]
    assert project.version("driver") == "1.0"
    (record,) = project.installed("driver-*/INSTALLER")
    assert record.read_text().strip() == installer
    assert project.marks() == {INSTALLED}


@slow
@with_each
def test_a_second_make_does_nothing(project: Project) -> None:
    project.make(INSTALLED_DEV)
    for mark in (INSTALLED, INSTALLED_DEV):
        assert project.make(mark) == f"make: '{mark}' is up to date.\n"


@slow
def test_a_wheel_that_is_not_the_pinned_one_is_refused(project: Project) -> None:
    project.release("driver", "1.0", "Summary: Something else.")
    code, output = project.try_make()
    assert code != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in output
    assert not project.marks()


@slow
@with_each
def test_a_lock_that_lacks_something_is_refused(project: Project, installer: str) -> None:
    whole = project.pinned("requirements.lock")
    project.lock("requirements.lock", *(line for line in whole if "driver" not in line))
    code, output = project.try_make()
    assert code != 0
    assert "requirements.lock does not fit together, or not on this Python; make lock" in output
    lacks = {
        "pip": "asker 1.0 requires driver, which is not installed.",
        "uv": "The package `asker` requires `driver[pool]`, but it's not installed",
    }
    assert lacks[installer] in output
    assert not project.marks()
    project.lock("requirements.lock", *whole)
    project.make()
    assert project.version("driver") == "1.0"


@slow
@with_each
def test_a_package_of_no_lock_is_in_the_way_of_none(project: Project) -> None:
    """An older lock had it, or somebody put it there; the driver it wants is no longer the pinned one."""
    pinned = project.pinned("requirements.lock")
    project.lock("requirements.lock", *pinned, project.release("relic", "1.0", "Requires-Dist: driver<1.1"))
    project.make()
    newer = project.release("driver", "1.1")
    project.lock("requirements.lock", *(line for line in pinned if "driver" not in line), newer)
    assert ".venv does not fit together, making it anew" in project.make()
    assert project.version("driver") == "1.1"
    assert not project.installed("relic*")


@slow
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("venv", signal.SIGKILL),
        ("packages", signal.SIGINT),
        ("packages", signal.SIGKILL),
        ("mark", signal.SIGKILL),
    ],
)
@with_the_quickest
def test_a_first_install_that_was_interrupted_begins_anew(
    project: Project, moment: str, number: signal.Signals
) -> None:
    project.interrupt(moment, number)
    assert not project.marks()
    project.tear("driver")
    project.make()
    assert project.version("driver") == "1.0"
    assert project.marks() == {INSTALLED}


@slow
@with_the_quickest
def test_a_finished_install_to_which_more_was_being_added_begins_anew(project: Project) -> None:
    project.make()
    project.interrupt("packages", signal.SIGKILL, INSTALLED_DEV)
    assert not project.marks()
    project.tear("driver")
    project.make(INSTALLED_DEV)
    assert project.version("driver") == project.version("judge") == "1.0"
    assert project.marks() == {INSTALLED, INSTALLED_DEV}


@slow
@with_the_quickest
def test_a_finished_install_that_was_being_made_anew_begins_anew(project: Project) -> None:
    project.make()
    # As after an upgrade of the system.
    (project.root / ".venv/bin/python").unlink()
    project.interrupt("venv", signal.SIGKILL, INSTALLED_DEV)
    assert not project.marks()
    project.make()
    assert project.version("driver") == "1.0"


@slow
@with_each
def test_a_newer_lock_whose_install_was_interrupted_is_installed(project: Project) -> None:
    project.make()
    pinned = project.pinned("requirements.lock")
    newer = project.release("driver", "1.1")
    project.lock("requirements.lock", *(line for line in pinned if "driver" not in line), newer)
    project.interrupt("packages", signal.SIGKILL)
    assert not project.marks()
    project.tear("driver")
    project.make()
    assert project.version("driver") == "1.1"


@slow
@with_the_quickest
def test_a_failed_install_of_the_tools_leaves_the_rest_to_make_again(project: Project) -> None:
    project.make()
    project.release("judge", "1.0", "Summary: Something else.")
    code, _ = project.try_make(INSTALLED_DEV)
    assert code != 0
    assert not project.marks()
    project.make()
    assert project.version("driver") == "1.0"


@slow
def test_pip_begins_anew_where_uv_fails_half_way(project: Project) -> None:
    project.tool("uv", FAILING_UV)
    assert "uv could not install this, trying pip ...\n" in project.make()
    assert project.version("driver") == "1.0"


def test_a_python_that_cannot_be_used_is_named(project: Project) -> None:
    project.environment["PYTHON"] = "/bin/false"
    code, output = project.try_make()
    assert code != 0
    assert "PYTHON=/bin/false is no Python 3.11 or newer, or cannot be run." in output
    assert not (project.root / ".venv").exists()
