"""A MongoDB that outlasts a test: emptied where making it anew takes long."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import urlsplit


class LastingMongoDb:
    """A database with all it has from the start, which it gets back after each test."""

    def __init__(self, url: str) -> None:
        from pymongo import MongoClient

        self.url = url
        self._client: Any = MongoClient(url)
        self._database = self._client[urlsplit(url).path.strip("/")]
        self._rules = self._options()
        self._first = {name: list(self._database[name].find()) for name in self._rules}

    def restore(self) -> None:
        for name, rules in self._options().items():
            if name not in self._rules:
                self._database[name].drop()
                continue
            if rules != self._rules[name]:
                self._database.command("collMod", name, validator=self._rules[name].get("validator", {}))
            self._restore_documents(name)

    def _restore_documents(self, name: str) -> None:
        collection, first = self._database[name], self._first[name]
        if list(collection.find().limit(len(first) + 1)) != first:
            collection.delete_many({})
            if first:
                collection.insert_many(first)

    def _options(self) -> dict[str, dict[str, Any]]:
        """Of each collection what its documents have to be like."""
        return {found["name"]: found["options"] for found in self._database.list_collections()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
