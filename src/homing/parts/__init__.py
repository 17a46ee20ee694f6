"""A part for each lane, on common ground; `homing.app` puts them together."""
