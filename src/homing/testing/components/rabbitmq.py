"""A RabbitMQ of our own: found or installed, started on free ports of loopback, ended with the run.

It is ruled by `erl_call`, which talks to the node itself. The node is known by a name and a cookie that
nobody else has, so no process id is needed that could be somebody else's by then.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from homing.testing.components.obtain import Missing, find_or_install
from homing.testing.components.processes import (
    account_for_servers,
    free_port,
    guard,
    hold,
    make_home,
    wait_until,
)

#: Where the script itself lies: on Debian the one in PATH changes the account and reads the system's files.
_SCRIPTS = "/usr/lib/rabbitmq/bin:/usr/local/sbin:/opt/homebrew/sbin"
#: A start takes five to nine seconds, and more while others use the machine.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Installation:
    """The programs of one RabbitMQ, and of the Erlang that it runs on."""

    server: Path
    erl_call: Path
    epmd: Path


# --- obtaining ---------------------------------------------------------------------------------


def obtain_rabbitmq() -> Installation | Missing:
    """The programs, installed first where there are none."""
    return find_or_install("RabbitMQ", "rabbitmq-server", _installed)


def _installed() -> Installation | None:
    found = shutil.which("rabbitmq-server", path=_SCRIPTS), shutil.which("erl_call"), shutil.which("epmd")
    programs = [Path(program) for program in found if program]
    return Installation(*programs) if len(programs) == len(found) else None


# --- running -----------------------------------------------------------------------------------


class RabbitMqServer:
    """A private broker: its own data, its own ports, gone when its holder is.

    `stop` and `start` keep data and ports, so that an outage can be played; `close` ends it all, and
    where nobody calls it the guardian does.
    """

    def __init__(self, installation: Installation, holders: Path | None = None) -> None:
        self._installation = installation
        self._shared_holders = holders
        self._is_laid_out = False
        self._account = account_for_servers("rabbitmq")
        self.home = make_home("homing-rabbitmq-", self._account)
        #: For clients, for other nodes, and of the epmd that knows the node's name.
        self.ports = free_port(), free_port(), free_port()
        self._node = f"homing-{secrets.token_hex(6)}"
        self._cookie = secrets.token_hex(16)
        self._hold: IO[str] | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def log(self) -> Path:
        return self.home / "log" / f"{self._node}@localhost.log"

    def start(self) -> None:
        """Returns when it accepts connections."""
        if not self._is_laid_out:
            self._lay_out()
        self._must(str(self._installation.server), "-detached")
        wait_until(self.running, f"starting RabbitMQ on port {self.port}", _PATIENCE)

    def stop(self, *, immediate: bool = False) -> None:
        """Immediate is what a crash looks like: the node halts where it stands."""
        self._must(*(self._halt() if immediate else self._call("-a", "init stop []")))
        wait_until(lambda: not self._is_registered(), "stopping RabbitMQ", _PATIENCE)

    def kill(self) -> None:
        """SIGKILL: the node has no say in it. The node itself tells its process id, right before."""
        told = self._run(*self._call("-a", "os getpid []")).stdout
        pid = int(told.strip().strip('"'))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._is_registered(), "killing RabbitMQ", _PATIENCE)

    def delete_queue(self, name: str) -> None:
        """As an administrator would, under whoever uses it."""
        resource = f'{{resource, <<"/">>, queue, <<"{name}">>}}'
        found = f"{{ok, Q}} = rabbit_amqqueue:lookup({resource})"
        self._evaluate(f'{found}, rabbit_amqqueue:delete(Q, false, false, <<"homing">>).')

    def block_publishers(self, *, blocked: bool) -> None:
        """What the broker does when it runs out of memory: it stops reading from those who publish."""
        allowed = "0.0001" if blocked else "0.4"
        self._evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({allowed}).")

    def _evaluate(self, erlang: str) -> None:
        done = self._run(*self._call("-e"), stdin=f"{erlang}\n")
        if done.returncode != 0 or "{ok," not in done.stdout:
            raise RuntimeError(f"erl_call failed: {done.stderr or done.stdout}")

    def running(self) -> bool:
        return speaks_amqp(self.port)

    def close(self) -> None:
        if self._is_laid_out:
            self._run(*self._ending())
            wait_until(lambda: not self._is_registered(), "ending RabbitMQ", _PATIENCE)
            self._is_laid_out = False
        if self._hold is not None:
            self._hold.close()
            self._hold = None
        shutil.rmtree(self.home, ignore_errors=True)

    def _lay_out(self) -> None:
        """What it would otherwise look for in the system's folders, and its guardian."""
        self._is_laid_out = True
        holders = self._shared_holders or self.home / "holders"
        if self._shared_holders is None:
            self._hold = hold(holders)
        files = {".erlang.cookie": self._cookie, "plugins": "[].", "environment": "", "rabbitmq.conf": ""}
        for name, text in files.items():
            (self.home / name).write_text(text)
            (self.home / name).chmod(0o400)
            self._give_away(self.home / name)
        guard("stop", holders, self.home, self._ending(), self._account)

    def _give_away(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)

    # ── the commands ─────────────────────────────────────────────────────────────────────────────

    def _call(self, *what: str) -> tuple[str, ...]:
        """`erl_call` answers within milliseconds where `rabbitmqctl` starts an Erlang of its own."""
        erl_call = str(self._installation.erl_call)
        return (erl_call, "-c", self._cookie, "-n", f"{self._node}@localhost", *what)

    def _halt(self) -> tuple[str, ...]:
        return self._call("-q")

    def _ending(self) -> tuple[str, ...]:
        """The node and its private epmd, by a command that can be run again later without harm.

        Once our folder is gone somebody else's epmd may have the port.
        """
        there = f"test -d {shlex.quote(str(self.home))}"
        script = f"{there} && {{ {shlex.join(self._halt())}; {self._installation.epmd} -kill; }}"
        variables = (f"{name}={value}" for name, value in self._environment().items())
        return ("env", *variables, "sh", "-c", script)

    def _is_registered(self) -> bool:
        return self._node in self._run(str(self._installation.epmd), "-names").stdout

    def _must(self, *command: str) -> None:
        done = self._run(*command)
        if done.returncode != 0:
            raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr or done.stdout}")

    def _run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        account = self._account
        return subprocess.run(
            command,
            # Only `erl_call` reads; the node would keep a pipe open for as long as it lives.
            **({"input": stdin} if stdin else {"stdin": subprocess.DEVNULL}),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home,
            env=self._environment(),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )

    def _environment(self) -> dict[str, str]:
        """All that names a place, a port or an address; of the caller's own only PATH."""
        home, (port, node_port, epmd_port) = self.home, self.ports
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Else epmd refuses to end until it has noticed that the node is gone.
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
            "RABBITMQ_NODENAME": f"{self._node}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_SCHEMA_DIR": f"{home}/schema",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{home}/generated",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/environment",
        }

    def __enter__(self) -> Self:
        if not self.running():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def speaks_amqp(port: int) -> bool:
    """Whether a broker answers to the protocol's greeting with a frame of its own."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def start_rabbitmq(holders: Path | None = None) -> RabbitMqServer | Missing:
    """A private broker, obtained and running; it ends with whoever holds `holders`, else with us."""
    installation = obtain_rabbitmq()
    if isinstance(installation, Missing):
        return installation
    server = RabbitMqServer(installation, holders)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server
