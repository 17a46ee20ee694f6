-- Which process made an attempt: on the page of a message somebody wants to know whether it was always the same.
ALTER TABLE dispatch_attempt ADD COLUMN worker text;
