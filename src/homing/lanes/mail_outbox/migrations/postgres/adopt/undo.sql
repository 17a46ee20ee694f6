-- What the migrations make beside columns, so that all of them can be run again where the table was made anew. Of a
-- table that was put aside, too.
DROP INDEX IF EXISTS mail_outbox_due, mail_outbox_dispatching, mail_outbox_retried, mail_outbox_expiring,
    mail_outbox_ended, mail_outbox_idempotency, mail_outbox_due_since, homing_mail_outbox_foreign;
DROP FUNCTION IF EXISTS homing_instant(timestamptz), homing_instant(timestamp);
-- With the triggers that call them.
DROP FUNCTION IF EXISTS mail_outbox_tally(), homing_note_mail_death(), homing_note_mail_put_back(), homing_mail_check()
    CASCADE;
DROP TABLE IF EXISTS homing_mail_death;
DELETE FROM homing_tally WHERE lane = 'mail_outbox';
