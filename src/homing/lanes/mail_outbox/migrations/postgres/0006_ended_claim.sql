-- The claim that ended a row. A row that is queued right after it was put back by a person, whoever wrote the SQL:
-- it goes to everybody who has not accepted the mail.
ALTER TABLE mail_outbox ADD COLUMN IF NOT EXISTS ended_claim bigint;
