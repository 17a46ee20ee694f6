"""The signature of SES requests: AWS's published vectors, and botocore against our own reading of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homing.testing.http_sink import SinkRequest
from homing.testing.mail_providers.sigv4 import read_claim, signature_of

# It ships no types, so that it is Any to us in either case.
auth: Any = import_module("botocore.auth")
awsrequest: Any = import_module("botocore.awsrequest")
credentials: Any = import_module("botocore.credentials")

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SCOPE = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"


def signed(method: str, path: str, headers: dict[str, str], body: bytes = b"", scope: str = SCOPE) -> str:
    names = ";".join(sorted(name.lower() for name in headers))
    claim = read_claim(f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature=x")
    assert claim is not None
    request = SinkRequest(method, path, tuple(headers.items()), body, 0.0, 1)
    return signature_of(request, claim, SECRET)


HEADERS = {"Host": "example.amazonaws.com", "X-Amz-Date": "20150830T123600Z"}


# From the AWS Signature Version 4 test suite: get-vanilla, post-vanilla, get-vanilla-query-order-key-case,
# and the example of the IAM user guide.
@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (signed("GET", "/", HEADERS), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (signed("POST", "/", HEADERS), "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            signed("GET", "/?Param2=value2&Param1=value1", HEADERS),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            signed(
                "GET",
                "/?Action=ListUsers&Version=2010-05-08",
                {
                    "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
                    "Host": "iam.amazonaws.com",
                    "X-Amz-Date": "20150830T123600Z",
                },
                scope="AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request",
            ),
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "query order", "iam"],
)
def test_published_vectors(got: str, expected: str) -> None:
    assert got == expected


@settings(max_examples=50, deadline=None)
@given(
    body=st.binary(max_size=200),
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60),
    port=st.sampled_from(["", ":8080"]),
    prefix=st.sampled_from(["", "/gateway"]),
)
def test_botocore_signs_what_we_verify(body: bytes, secret: str, port: str, prefix: str) -> None:
    url = f"https://email.eu-west-1.amazonaws.com{port}{prefix}/v2/email/outbound-emails"
    request = awsrequest.AWSRequest(
        method="POST", url=url, data=body, headers={"Content-Type": "application/json"}
    )
    auth.SigV4Auth(credentials.ReadOnlyCredentials("AKID", secret, None), "ses", "eu-west-1").add_auth(
        request
    )
    headers = (*request.headers.items(), ("Host", f"email.eu-west-1.amazonaws.com{port}"))
    arrived = SinkRequest("POST", f"{prefix}/v2/email/outbound-emails", headers, body, 0.0, 1)
    claim = read_claim(request.headers["Authorization"])
    assert claim is not None
    assert claim.signature == signature_of(arrived, claim, secret)
    assert claim.signature != signature_of(arrived, claim, secret + "x")
