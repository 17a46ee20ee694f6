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
        self._first = {name: list(self._database[name].find()) for name in self._names()}

    def restore(self) -> None:
        for name in self._names():
            self._restore(name)

    def _restore(self, name: str) -> None:
        collection = self._database[name]
        first = self._first.get(name)
        if first is None:
            collection.drop()
        elif list(collection.find().limit(len(first) + 1)) != first:
            collection.delete_many({})
            if first:
                collection.insert_many(first)

    def _names(self) -> list[str]:
        names: list[str] = self._database.list_collection_names()
        return names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
