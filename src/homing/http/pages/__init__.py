"""The pages of the desk. Plain html that works without script; `static/desk.js` only makes it nicer."""
