"""The processes that are at work: who they are, what they hold, and what they are told to leave alone.

`Fleet` is the tables (`homing_worker`, `homing_pause`), `Heartbeat` a process's own part in them, `Leases`
what each holds in the lanes. A pause is written down, so it outlives the process that it is meant for.
"""
