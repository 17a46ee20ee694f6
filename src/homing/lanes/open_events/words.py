"""Short texts in requests: names of terms, campuses and sections, and who saw something."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from homing.errors import InvalidRequest

Word = Annotated[str, Meta(min_length=1, max_length=100)]

#: A bar parts the words of a dedupe key.
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff|]")


def check_plain(request: Struct, *fields: str) -> None:
    """Each of the fields, by its name in JSON, is left out or one plain word or more."""
    for field in fields:
        text = getattr(request, _snake(field))
        if text is not None and (_ODD.search(text) or not text.strip()):
            raise InvalidRequest(
                f"{field}: must not be blank, nor contain control characters or a bar", field
            )


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda match: f"_{match[0].lower()}", name)
