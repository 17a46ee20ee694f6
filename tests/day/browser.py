"""Somebody with a browser that runs no script: opens pages, follows links, sends the forms that it finds."""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx
from msgspec import Struct


class Form(Struct):
    method: str
    action: str
    fields: dict[str, str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        self.words: list[str] = []
        self._within: Form | None = None
        self._select: str | None = None
        self._link: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        match tag:
            case "form":
                self._within = Form(given.get("method", "get"), given.get("action", ""), {})
                self.forms.append(self._within)
            case "input" | "button" if self._within is not None and "name" in given:
                self._within.fields[given["name"]] = given.get("value", "")
            case "select":
                self._select = given.get("name")
            case "option" if self._within is not None and self._select is not None:
                self._choose(self._within, self._select, given)
            case "a":
                self._link = given.get("href")

    @staticmethod
    def _choose(form: Form, name: str, option: Mapping[str, str]) -> None:
        """The first one, unless another is selected."""
        if "selected" in option or name not in form.fields:
            form.fields[name] = option.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        match tag:
            case "form":
                self._within = None
            case "select":
                self._select = None
            case "a":
                self._link = None

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.words.append(text)
            if self._link is not None:
                self.links.setdefault(text, self._link)


class Page:
    """A page as a person sees it."""

    def __init__(self, response: httpx.Response) -> None:
        reader = _Reader()
        reader.feed(response.text)
        self.url, self.html, self.status = response.url, response.text, response.status_code
        self.forms, self.links = reader.forms, reader.links
        self.text = unescape(" ".join(reader.words))

    def form(self, action: str) -> Form:
        found = [form for form in self.forms if form.action == action]
        assert found, f"{self.url.path} has no form that goes to {action}"
        return found[0]


class Browser:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.page: Page

    async def open(self, address: str, expected: int = 200) -> Page:
        response = await self._client.get(address, headers={"Accept": "text/html"})
        assert response.status_code == expected, f"{address}: {response.text}"
        self.page = Page(response)
        return self.page

    async def follow(self, text: str) -> Page:
        assert text in self.page.links, f"{self.page.url.path} has no link {text!r}"
        return await self.open(self.page.links[text])

    async def send(self, action: str, **typed: str) -> Page:
        """The form of this page, with its hidden fields and what was typed; then where it leads."""
        form = self.page.form(action)
        assert form.method == "post"
        unknown = set(typed) - set(form.fields)
        assert not unknown, f"the form has no {unknown}"
        origin = f"{self.page.url.scheme}://{self.page.url.netloc.decode()}"
        headers = {"Origin": origin, "Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
        answer = await self._client.post(action, data={**form.fields, **typed}, headers=headers)
        if answer.status_code == 303:
            return await self.open(answer.headers["location"])
        assert answer.status_code == 200, answer.text
        self.page = Page(answer)
        return self.page

    async def json(self, path: str, **query: Any) -> Any:
        """What the script of a page would ask for."""
        answer = await self._client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()
