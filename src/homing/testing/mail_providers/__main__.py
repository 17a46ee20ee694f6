"""A provider as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from homing.testing.mail_providers import DESKS, provider_peer


async def _serve(name: str, port: int) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with provider_peer(name, port=port, keep=False) as peer:
        sys.stdout.write(f"{peer.url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m homing.testing.mail_providers", description="Takes mails."
    )
    parser.add_argument("provider", choices=sorted(DESKS))
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    asyncio.run(_serve(options.provider, options.port))


if __name__ == "__main__":
    main()
