#!/bin/sh
# Makes the files that compose.yaml hands to its services as secrets, in deploy/secrets, each once. What is there stays
# as it is, so it can be run again. None of it belongs into version control.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets

random() {
    head -c 24 /dev/urandom | base64 | tr '+/' '-_'
}

# write NAME TEXT: without a newline, for some programs take it for a part of the secret. Read by the users of several
# images, whose numbers differ; the folder keeps everyone else out.
write() {
    if [ ! -s "secrets/$1" ]; then
        printf '%s' "$2" > "secrets/$1"
        chmod 0444 "secrets/$1"
        echo "made deploy/secrets/$1"
    else
        echo "kept deploy/secrets/$1"
    fi
}

write postgres_password "$(random)"
write rabbitmq_password "$(random)"
write grafana_password "$(random)"
write homing_encryption_key "$(head -c 32 /dev/urandom | base64)"
write homing_database_url "postgresql://homing:$(cat secrets/postgres_password)@postgres:5432/homing"
write homing_broker_url "amqp://homing:$(cat secrets/rabbitmq_password)@rabbitmq:5672/"
# Where mails go. catch:// keeps them to look at; put smtp://user:password@host here to send them.
write homing_mail_url "catch://"
chmod 0644 secrets/homing_mail_url
# Filled by `homing keys create`; docs/deployment.md says how.
if [ ! -e secrets/homing_metrics_key ]; then
    : > secrets/homing_metrics_key
    chmod 0644 secrets/homing_metrics_key
    echo "made deploy/secrets/homing_metrics_key (empty)"
fi
