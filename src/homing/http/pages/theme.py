"""Light, dark, or as the browser says: a choice of this browser, kept in a cookie."""

from __future__ import annotations

from litestar import Controller, MediaType, Response, post
from litestar.datastructures import Cookie

from homing.http.asking import AnyRequest
from homing.http.pages.shell import THEME_COOKIE, THEMES, gone_to, own_path, read_form

#: Nothing of ours is changed by it, so nothing is written down.
_UNTOLD = {"scope": "known", "audit": "own"}
_YEAR = 365 * 24 * 3600


class ThemeChoice(Controller):
    include_in_schema = False

    @post("/theme", status_code=303, media_type=MediaType.HTML, opt=_UNTOLD)
    async def choose(self, request: AnyRequest) -> Response[str]:
        form = await read_form(request)
        response = gone_to(own_path(form.get("next", "/")))
        if (chosen := form.get("theme")) in THEMES:
            cookie = Cookie(key=THEME_COOKIE, value=chosen, path="/", max_age=_YEAR, samesite="lax")
            response.cookies.append(cookie)
        return response
