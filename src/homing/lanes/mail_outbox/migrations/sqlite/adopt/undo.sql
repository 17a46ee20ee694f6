-- What the migrations make beside columns, so that all of them can be run again where the table was made anew. Of a
-- table that was put aside, too.
DROP TRIGGER IF EXISTS homing_mail_outbox_on_insert;
DROP TRIGGER IF EXISTS homing_mail_outbox_on_update;
DROP TRIGGER IF EXISTS mail_outbox_times_on_insert;
DROP TRIGGER IF EXISTS mail_outbox_times_on_update;
DROP TRIGGER IF EXISTS mail_outbox_tally_insert;
DROP TRIGGER IF EXISTS mail_outbox_tally_update;
DROP TRIGGER IF EXISTS mail_outbox_tally_delete;
DROP TRIGGER IF EXISTS homing_mail_death;
DROP TRIGGER IF EXISTS homing_mail_put_back;
DROP TRIGGER IF EXISTS homing_mail_counters;
DROP INDEX IF EXISTS mail_outbox_due;
DROP INDEX IF EXISTS mail_outbox_dispatching;
DROP INDEX IF EXISTS mail_outbox_retried;
DROP INDEX IF EXISTS mail_outbox_expiring;
DROP INDEX IF EXISTS mail_outbox_ended;
DROP INDEX IF EXISTS mail_outbox_idempotency;
DROP INDEX IF EXISTS mail_outbox_due_since;
DROP VIEW IF EXISTS homing_mail_outbox_foreign;
DROP TABLE IF EXISTS homing_mail_death;
DELETE FROM homing_tally WHERE lane = 'mail_outbox';
DELETE FROM homing_time_format WHERE lane = 'mail_outbox';
