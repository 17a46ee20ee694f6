-- Which URL (without its query, as a hash) the failures in a row of a target are of; '*' when they are of several, or of
-- the connection itself. One URL that fails holds back its own jobs only: until when, stands beside it.
ALTER TABLE homing_target
    ADD COLUMN endpoint text,
    ADD COLUMN endpoint_until timestamptz,
    -- When one of its URLs last took something, as far as anybody had a reason to write it down.
    ADD COLUMN well_at timestamptz;
