"""Where a database is, told without any part of a password, however it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.db import redact
from homing.db.place import place_of


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://ann:hush@db.example:5432/homing?sslkey=hush",
            "postgresql://***@db.example:5432/homing",
        ),
        ("postgresql://db.example/homing?password=hush", "postgresql://db.example/homing"),
        ("postgresql:///homing?host=/run/postgresql", "postgresql:///homing"),
        ("postgresql://ann:hush@[::1]:5432/homing", "postgresql://***@[::1]:5432/homing"),
        ("mongodb://u:hush@h1:1,[::1]:2,h3/jobs?replicaSet=rs0", "mongodb://***@h1:1,[::1]:2,h3/jobs"),
        ("sqlite:///homing.db", "sqlite:///homing.db"),
        ("sqlite:////var/lib/homing.db?busy_timeout=5", "sqlite:////var/lib/homing.db"),
        # What was not escaped in a password.
        ("mongodb://user:12/hush@db1,db2:27017/jobs", "mongodb://***@db1,db2:27017/jobs"),
        ("postgresql://ann:12@hush@db/homing", "postgresql://***@db/homing"),
        ("postgresql://ann:hush?x@db/homing", "postgresql://…"),
        ("postgresql://ann:12?hush@db/homing", "postgresql://…"),
        ("postgresql://ann:12#hush@db/homing", "postgresql://…"),
        ("postgresql://ann:12@hush?x@db/homing", "postgresql://…"),
        ("postgresql://ann:hush@db/homing?x=a@b", "postgresql://…"),
        # The host was forgotten, so that what should be a port is none.
        ("postgresql://ann:hush", "postgresql://…"),
        ("postgresql://ann:hush/homing", "postgresql://…"),
        ("ann:hush@db/homing", "…"),
    ],
)
def test_a_place_is_shown_without_any_part_of_a_password(url: str, shown: str) -> None:
    assert place_of(url) == shown
    assert "hush" not in redact(url).replace("sslkey=hush", "")


_PASSWORDS = st.text(st.sampled_from("?@/#:,&=%[] ab1"), min_size=1, max_size=8)


@given(_PASSWORDS, st.sampled_from(["", "?sslmode=require", "?x=a@b", "#a"]))
def test_whatever_a_password_is_made_of_it_is_not_shown(password: str, options: str) -> None:
    url = f"postgresql://ann:{password}@db.example/homing{options}"
    assert place_of(url) in {"postgresql://***@db.example/homing", "postgresql://…"}
    shown = {"postgresql://ann:***@db.example/homing", "postgresql://***@db.example/homing"}
    assert redact(url).removesuffix(options) in {*shown, "postgresql://…", "***"}
