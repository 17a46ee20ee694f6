"""`homing demo`: a relay that fails on purpose, sample mails, and the page that shows both."""

from __future__ import annotations

import asyncio
