"""The image and the compose file: what they name exists, and they agree with each other and with the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import require_program
from tests.deploy.commands import DEPLOY, ROOT, lines_of, parse

from homing.app import Homing
from homing.db import connect
from homing.settings import FIELDS, load_settings

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
TEXTS = [path for path in DEPLOY.rglob("*") if path.is_file() and "secrets" not in path.parts]


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = msgspec.yaml.decode((DEPLOY / "compose.yaml").read_text())
    return loaded


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name}\s+(.+)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_setting_that_is_named_exists(path: Path) -> None:
    known = {*FIELDS, *(f"{name}_FILE" for name in FIELDS)}
    named = set(re.findall(r"\b((?:HOMING|DISPATCH)_[A-Z0-9_]*[A-Z0-9])\b", path.read_text()))
    assert named <= known, named - known


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_file_names_a_secret(path: Path) -> None:
    """Passwords and keys come from files outside of the repository."""
    assert not re.search(r"(?i)\b(password|secret|key)\s*[:=]\s*[\"']?[A-Za-z0-9+/]{20,}", path.read_text())


# ── the image ────────────────────────────────────────────────────────────────────────────────────


def test_the_image_is_made_of_files_that_are_there() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored, "everything is left out but what is named"
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    # What hatchling reads to build the package.
    project = (ROOT / "pyproject.toml").read_text()
    assert {"pyproject.toml", *re.findall(r'readme = "(.+)"', project), "LICENSE"} <= copied


def test_every_pinned_package_has_hashes_and_the_build_tools_go() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-z0-9-]+)==.*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-z0-9-]+==", lock, re.MULTILINE))
    gone = re.search(r"uninstall --yes ([a-z -]+)", DOCKERFILE)
    assert gone is not None
    assert set(gone[1].split()) <= set(pinned)
    assert "--no-deps --require-hashes" in DOCKERFILE
    assert "--only-binary :all:" in DOCKERFILE


def test_the_image_runs_as_nobody_special_and_asks_itself() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["homing"]
    parse(json.loads(instructions("CMD")[0]))
    (check,) = instructions("HEALTHCHECK")
    binary, *arguments = json.loads(check.partition("CMD")[2])
    assert binary == "homing"
    parse(arguments)
    assert "curl" not in re.sub(r"#.*", "", DOCKERFILE)


def test_the_defaults_of_the_image_are_settings() -> None:
    environment = dict(re.findall(r"((?:HOMING|DISPATCH)_[A-Z_]+)=(\S+)", instructions("ENV")[0]))
    assert load_settings(environ=environment).host == "0.0.0.0"


def test_hadolint_finds_nothing() -> None:
    command = [require_program("hadolint"), str(DEPLOY / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# ── compose ──────────────────────────────────────────────────────────────────────────────────────


def ours() -> dict[str, Any]:
    return {name: one for name, one in compose()["services"].items() if one["image"].startswith("homing:")}


def test_compose_runs_commands_that_there_are() -> None:
    assert set(ours()) == {"migrate", "homing", "homing-worker"}
    for service in ours().values():
        parse(service["command"])
    (_, binary, *arguments) = ours()["homing-worker"]["healthcheck"]["test"]
    assert binary == "homing"
    parse(arguments)
    for arguments in lines_of((DEPLOY / "compose.yaml").read_text()):
        parse(arguments)


def test_services_wait_for_what_they_need() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                image_asks_itself = other in ours()
                assert image_asks_itself or "test" in services[other]["healthcheck"], (name, other)
            else:
                assert (other, how["condition"]) == ("migrate", "service_completed_successfully"), name
    for name in ("homing", "homing-worker"):
        assert set(services[name]["depends_on"]) == {"migrate", "rabbitmq"}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_our_containers_can_change_nothing_of_themselves() -> None:
    for service in ours().values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_no_container_can_take_more_than_its_share_or_another_ones_rights() -> None:
    for name, service in compose()["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        # To give a folder to the server's own user, and to become that user.
        assert set(service.get("cap_add", ())) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"]
        assert service["pids_limit"]


def test_images_of_others_are_named_by_digest() -> None:
    others = {name: one["image"] for name, one in compose()["services"].items() if name not in ours()}
    assert set(others) == {"postgres", "rabbitmq", "prometheus", "grafana"}
    for image in others.values():
        assert re.fullmatch(r"[a-z/]+:v?[0-9.]+[a-z-]*@sha256:[0-9a-f]{64}", image), image


def test_ports_agree_and_are_open_to_this_machine_only() -> None:
    exposed = set(instructions("EXPOSE")[0].split())
    services = compose()["services"]
    assert services["homing"]["ports"] == ["127.0.0.1:8080:8080"]
    assert services["homing-worker"]["environment"]["HOMING_METRICS_PORT"] == "9100"
    assert exposed == {"8080", "9100"}
    assert str(load_settings(environ={}).port) in exposed
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_databases_and_broker_are_inside_only() -> None:
    services = compose()["services"]
    assert compose()["networks"]["inside"]["internal"] is True
    assert services["postgres"]["networks"] == services["rabbitmq"]["networks"] == ["inside"]


def make_secrets(folder: Path) -> str:
    """What the script says."""
    command = ["sh", str(folder / "make-secrets.sh")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    shutil.copy(DEPLOY / "make-secrets.sh", tmp_path)
    make_secrets(tmp_path)
    return tmp_path / "secrets"


def test_secrets_are_files_that_the_script_makes(secrets: Path) -> None:
    made = {path.name: path.read_text() for path in secrets.iterdir()}
    declared = {name: Path(one["file"]).name for name, one in compose()["secrets"].items()}
    used = {name for service in compose()["services"].values() for name in service.get("secrets", ())}
    assert set(declared) == used == set(made)
    assert all(name == file for name, file in declared.items())
    again = make_secrets(secrets.parent)
    assert "made" not in again
    assert "kept deploy/secrets/homing_mail_url" in again
    assert {path.name: path.read_text() for path in secrets.iterdir()} == made
    named = {
        value.removeprefix("/run/secrets/")
        for service in compose()["services"].values()
        for value in service.get("environment", {}).values()
        if value.startswith("/run/secrets/")
    }
    assert named <= used
    settings = load_settings(
        environ={
            "HOMING_DATABASE_URL": made["homing_database_url"],
            "HOMING_BROKER_URL": made["homing_broker_url"],
            "HOMING_ENCRYPTION_KEY": made["homing_encryption_key"],
            "HOMING_MAIL_URL": made["homing_mail_url"],
        }
    )
    assert connect(settings.database_url).dialect == "postgres"
    assert made["postgres_password"] in settings.database_url


def test_what_is_mounted_exists() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert volume.endswith(":ro"), volume
            else:
                assert source in compose()["volumes"]


async def test_a_homing_can_be_made_of_what_compose_tells_it(secrets: Path) -> None:
    for service in ours().values():
        environment = {name: _interpolated(value, secrets) for name, value in service["environment"].items()}
        settings = load_settings(environ={"HOMING_HOST": "0.0.0.0", **environment})
        # Nothing is reached for yet, but URLs, queues, the sender of mails and the key are looked at.
        homing = Homing(settings)
        assert homing.jobs_broker is not None
        assert homing.jobs_broker.name == "rabbitmq"
        assert homing.pruning == [], "everything is kept unless somebody says otherwise"
        await homing.close()


def _interpolated(value: str, secrets: Path) -> str:
    """As compose does it where nothing is set, with the secrets where they are here."""
    plain = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)
    return plain.replace("/run/secrets/", f"{secrets}/")
