-- How many emails there are, without counting them. Only inserts and deletes are tallied: what waits, is under way or
-- ended badly is counted in indexes of its own, and what ended well is the rest. To tally every change of a state
-- would cost claims and settlements a tenth of their speed (measured: the server copies every row for the trigger).
-- Writers only append, so that none waits for another; one process sums up now and then (db/tally.py).
CREATE TABLE IF NOT EXISTS homing_tally (
    lane  text NOT NULL,
    state text NOT NULL,
    count bigint NOT NULL
) WITH (
    -- What was summed up is dead at once, and every look at a tally reads past it.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- With the rights of its owner, and in its schema: whoever may insert a row need not know of tallies.
CREATE FUNCTION email_log_tally() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO homing_tally SELECT 'email_log', 'total', count(*) FROM come HAVING count(*) > 0;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO homing_tally SELECT 'email_log', 'total', -count(*) FROM gone HAVING count(*) > 0;
    ELSE
        INSERT INTO homing_tally
        SELECT lane, state, -sum(count) FROM homing_tally WHERE lane = 'email_log' GROUP BY lane, state;
    END IF;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION email_log_tally() SET search_path = %s, pg_temp', current_setting('search_path'));
END
$$;

-- The first of these waits until nobody writes to the table, and nobody does before all of this is committed: the
-- count below and the triggers meet without a gap.
CREATE TRIGGER email_log_tally_insert AFTER INSERT ON email_log REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION email_log_tally();
CREATE TRIGGER email_log_tally_delete AFTER DELETE ON email_log REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION email_log_tally();
CREATE TRIGGER email_log_tally_truncate AFTER TRUNCATE ON email_log
    FOR EACH STATEMENT EXECUTE FUNCTION email_log_tally();
INSERT INTO homing_tally SELECT 'email_log', 'total', count(*) FROM email_log HAVING count(*) > 0;
