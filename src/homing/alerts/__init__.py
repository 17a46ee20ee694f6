"""Alerts to people, as mails and webhooks through Homing itself.

rules.py   when somebody is told: pure
words.py   what they are told
eyes.py    what is looked at: targets, backlogs, workers
deaths.py  what died since the last look
store.py   homing_alert_cause (what is wrong), homing_alert (what people were told)
post.py    a told alert becomes a mail and a webhook
watch.py   the loop; of all processes, one looks
desk.py    what people ask: recent alerts, silence, a test

Never a loop: nothing about an alert message is an alert. Its death is not noted (by its lane), its
target has no rule, and the backlog is counted without it. `docs/alerts.md` tells it for operators.
"""
