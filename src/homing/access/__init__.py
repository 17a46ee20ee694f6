"""Who may do what, and who did it. Always in the database of `HOMING_DATABASE_URL`.

homing_api_key        programs: a key's id, a hash of its secret, its scopes; never the key itself
homing_user           people: a password by scrypt, a role (viewer, operator, admin)
homing_session        who is logged in: a hash of the cookie
homing_login_failure  how often somebody failed to, by name and by address; all processes share it
homing_audit          what was done, by whom, from where, to what, and how it ended

Once there is a key or a user, nothing is served without one any more; revoking the last does not open the
door again. `docs/access.md` tells it for operators.
"""
