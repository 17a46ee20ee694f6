-- As on PostgreSQL.
CREATE INDEX homing_audit_action ON homing_audit (action, id);
CREATE INDEX homing_audit_not_done ON homing_audit (id) WHERE outcome <> 'done';
