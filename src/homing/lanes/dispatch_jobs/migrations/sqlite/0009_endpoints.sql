-- As on PostgreSQL.
ALTER TABLE homing_target ADD COLUMN endpoint TEXT;
ALTER TABLE homing_target ADD COLUMN endpoint_until TIMESTAMP;
ALTER TABLE homing_target ADD COLUMN well_at TIMESTAMP;
