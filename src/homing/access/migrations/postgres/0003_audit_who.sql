-- Those who are called alike at the beginning lie side by side in the order of their letters, and in no other order for
-- sure. The index of `who` is built anew, the table is not.
ALTER TABLE homing_audit ALTER COLUMN who TYPE text COLLATE "C";
-- What was known of its values is forgotten by that.
ANALYZE homing_audit (who);
