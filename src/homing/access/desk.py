"""Everything about access that one process needs."""

from __future__ import annotations

import time
from functools import cached_property

from homing.access.audit import AuditLog
from homing.access.key_text import KeyHashes
from homing.access.keys import ApiKeys
from homing.access.login import Logins
from homing.access.memory import KEPT
from homing.access.passwords import Cost, Passwords
from homing.access.scopes import EVERYTHING
from homing.access.sessions import Sessions, SessionTerms
from homing.access.users import Users
from homing.db import Database, load_queries
from homing.engine.model import Monotonic
from homing.errors import SettingsError
from homing.telemetry import Telemetry


class Access:
    def __init__(
        self,
        database: Database,
        telemetry: Telemetry,
        *,
        encryption_key: str | None = None,
        sessions: SessionTerms | None = None,
        password_cost: Cost | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._database, self._monotonic, self._encryption_key = database, monotonic, encryption_key
        self._queries = load_queries(__package__ or "", database.dialect)
        self.telemetry = telemetry
        passwords = Passwords(password_cost)
        self.audit = AuditLog(database, telemetry, monotonic)
        self.users = Users(database, self.audit, passwords)
        self.sessions = Sessions(database, self.audit, sessions, monotonic=monotonic)
        self.log_in = Logins(database, self.users, self.sessions, passwords, self.audit)
        self._is_configured = False
        self._looked = -KEPT

    @cached_property
    def keys(self) -> ApiKeys:
        """Made when it is first asked for: a bad encryption key is no matter of who only looks at mails."""
        hashes = KeyHashes.from_setting(self._encryption_key)
        return ApiKeys(self._database, self.audit, hashes, monotonic=self._monotonic)

    async def is_configured(self) -> bool:
        """Whether there was ever a key or a user. From then on nothing is open any more."""
        if self._is_configured or self._monotonic() - self._looked < KEPT:
            return self._is_configured
        began = self._monotonic()
        rows = await self._database.fetch(self._queries["is_configured"], {})
        self._is_configured, self._looked = bool(rows[0]["configured"]), began
        return self._is_configured

    async def scopes_of(self, who: str) -> frozenset[str] | None:
        """What somebody may do now whom the audit log names so; None: they do not count any more.

        Whoever works on the machine itself may do everything, by the command line or while there are no keys.
        """
        kind, _, id = who.partition(":")
        if kind == "user":
            return await self.users.scopes_of(id)
        if kind == "key":
            return await self.keys.scopes_of(id)
        return EVERYTHING

    async def require_configured(self, host: str) -> None:
        """Before listening on an address that others can reach."""
        if not await self.is_configured():
            raise SettingsError(
                f"HOMING_HOST={host} is not a loopback address, and there is neither a key nor a user: "
                "whoever reaches the port could do everything. Make one first, "
                "`homing keys create NAME --scope jobs:write` for a program or `homing users add NAME --role "
                "admin` for a person, or listen on 127.0.0.1"
            )

    async def close(self) -> None:
        """Write what is still to be noted."""
        if "keys" in self.__dict__:
            await self.keys.drained()
        await self.sessions.drained()
        await self.audit.close()
