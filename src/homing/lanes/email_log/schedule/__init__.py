"""The scheduling stage of `email_log`: what is due is published."""
