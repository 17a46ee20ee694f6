-- Ids are time-sorted (TSID): 42 bits of milliseconds since 2020 and 22 bits of a counter that all
-- processes share, so no two of them can make the same one.
CREATE SEQUENCE homing_tsid_counter AS bigint MINVALUE 0 MAXVALUE 4194303 CYCLE;

CREATE FUNCTION homing_tsid_at(moment timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT floor((date_part('epoch', moment) - 1577836800) * 1000)::bigint << 22
$$;

CREATE FUNCTION homing_tsid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (floor((date_part('epoch', clock_timestamp()) - 1577836800) * 1000)::bigint << 22)
         | nextval('homing_tsid_counter')
$$;

CREATE FUNCTION homing_tsid_time(id bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT to_timestamp(((id >> 22) + 1577836800000) / 1000.0::double precision)
$$;

-- A target is scheme, host, port and credentials; lanes/dispatch_jobs/target.py says the same in Python.
CREATE FUNCTION homing_target_of(url text, credentials_id bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN part IS NULL THEN 'invalid'
           ELSE lower(part[1]) || '://' || rtrim(lower(part[2]), '.') || ':'
                || coalesce(part[3]::numeric::text, CASE lower(part[1]) WHEN 'http' THEN '80' ELSE '443' END)
                || coalesce('#' || credentials_id, '') END
    FROM (SELECT regexp_match(url, '^(https?)://(\[[^]]*\]|[^/?#:]+)(?::(\d{1,5}))?(?:[/?#]|$)', 'i') AS part) AS parsed
$$;

CREATE TABLE dispatch_job (
    id                   bigint PRIMARY KEY DEFAULT homing_tsid(),
    external_id          varchar(32),
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),

    source               varchar(100) NOT NULL,
    type                 varchar(100) NOT NULL,
    group_id             varchar(100),

    target_url           varchar(2048) NOT NULL,
    protocol             varchar(50) NOT NULL DEFAULT 'HTTP_WEBHOOK',
    payload              text NOT NULL,
    payload_content_type varchar(100) NOT NULL DEFAULT 'application/json',
    credentials_id       bigint,

    status               varchar(50) NOT NULL DEFAULT 'PENDING'
                         CHECK (status IN ('PENDING', 'IN_PROGRESS', 'COMPLETED', 'FAILED', 'ERROR', 'CANCELLED')),
    max_retries          integer NOT NULL DEFAULT 3 CHECK (max_retries BETWEEN 1 AND 1000),
    retry_strategy       varchar(50) NOT NULL DEFAULT 'exponential'
                         CHECK (retry_strategy IN ('exponential', 'linear', 'fixed')),
    scheduled_for        timestamptz CHECK (isfinite(scheduled_for)),
    expires_at           timestamptz CHECK (isfinite(expires_at)),

    attempt_count        integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_attempt_at      timestamptz,
    completed_at         timestamptz,
    duration_millis      bigint,
    last_error           text,
    idempotency_key      varchar(255),

    -- Ours, from here on. Where a job is to be queued, kept so that it can be sent again:
    queue_url            varchar(2048),
    ordering             text NOT NULL DEFAULT 'none'
                         CHECK (ordering = 'none' OR ordering = 'group' AND group_id IS NOT NULL),
    timeout_seconds      double precision CHECK (timeout_seconds BETWEEN 0.1 AND 300),
    -- The word by which dead letters are grouped.
    error_class          text,
    -- What the idempotency key was first used with.
    fingerprint          text,
    -- Only false when it is known that there are none: it saves a look for each job.
    has_headers          boolean NOT NULL DEFAULT true,
    target               text NOT NULL,
    next_attempt_at      timestamptz NOT NULL DEFAULT now() CHECK (isfinite(next_attempt_at)),
    -- False while an earlier job of its ordered group is open. Whoever ends a job of a group makes the next ready.
    ready                boolean NOT NULL DEFAULT true,
    -- The order within a group.
    position             bigint,
    -- Where a broker is used: when to look whether its message must be sent, whether one was and should be on its
    -- way, and how often one was.
    queue_at             timestamptz NOT NULL DEFAULT now(),
    queued               boolean NOT NULL DEFAULT false,
    send_number          integer NOT NULL DEFAULT 0,
    -- Those made before it was requeued: they count, but not against max_retries.
    attempts_before      integer NOT NULL DEFAULT 0,
    -- Whether the dead-letter target was told of this end.
    dead_letter_sent     boolean NOT NULL DEFAULT false,
    claim_seq            bigint NOT NULL DEFAULT 0,
    locked_by            text,
    lease_expires_at     timestamptz,
    rescue_count         integer NOT NULL DEFAULT 0,
    defer_count          integer NOT NULL DEFAULT 0
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);

-- The specification's indexes. Those that a search filters by go on with created_at and id, so that the
-- newest twenty of five million are read and not sorted. Where a column is mostly empty, rows without it are
-- left out: each claim and each settlement writes every index that has the row.
CREATE INDEX idx_dispatch_external_id ON dispatch_job (external_id, created_at, id) WHERE external_id IS NOT NULL;
CREATE INDEX idx_dispatch_status ON dispatch_job (status, created_at, id);
CREATE INDEX idx_dispatch_source ON dispatch_job (source, created_at, id);
CREATE INDEX idx_dispatch_type ON dispatch_job (type, created_at, id);
CREATE INDEX idx_dispatch_group_id ON dispatch_job (group_id, created_at, id) WHERE group_id IS NOT NULL;
CREATE INDEX idx_dispatch_scheduled ON dispatch_job (scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE INDEX idx_dispatch_created ON dispatch_job (created_at, id);
-- Two filters that are rare together though each is frequent would read millions.
CREATE INDEX homing_job_source_status ON dispatch_job (source, status, created_at, id);

-- What a claim reads: by target, so that one that is paused, slow or failing costs the others nothing.
CREATE INDEX homing_job_due ON dispatch_job (target, next_attempt_at, id)
    WHERE ready AND status IN ('PENDING', 'FAILED');
CREATE INDEX homing_job_in_progress ON dispatch_job (id) INCLUDE (target, locked_by) WHERE status = 'IN_PROGRESS';
CREATE INDEX homing_job_unsent ON dispatch_job (queue_at, id) WHERE status IN ('PENDING', 'FAILED');
CREATE INDEX homing_job_expiring ON dispatch_job (expires_at)
    WHERE status IN ('PENDING', 'FAILED') AND expires_at IS NOT NULL;
CREATE INDEX homing_job_group ON dispatch_job (group_id, position)
    WHERE ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS');
-- The promise itself: of a group, one at a time.
CREATE UNIQUE INDEX homing_job_one_per_group ON dispatch_job (group_id)
    WHERE ordering = 'group' AND ready AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS');
CREATE INDEX homing_job_credentials ON dispatch_job (credentials_id)
    WHERE credentials_id IS NOT NULL AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS');
CREATE INDEX homing_job_dead ON dispatch_job (error_class, id) WHERE status = 'ERROR';
CREATE INDEX homing_job_dead_letter ON dispatch_job (updated_at) WHERE status = 'ERROR' AND NOT dead_letter_sent;
-- The URL may be longer than an index entry.
CREATE UNIQUE INDEX homing_job_idempotency ON dispatch_job (idempotency_key, source, type, md5(target_url))
    WHERE idempotency_key IS NOT NULL;

-- So that a search by two of them is planned, and its total estimated, by how they really go together.
CREATE STATISTICS homing_job_kinds (mcv) ON source, type, status FROM dispatch_job;

CREATE SEQUENCE homing_job_position AS bigint;

-- A job that another program inserts names no target: what follows from its columns is filled in here.
CREATE FUNCTION homing_job_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.target := homing_target_of(NEW.target_url, NEW.credentials_id);
    NEW.next_attempt_at := greatest(coalesce(NEW.scheduled_for, NEW.next_attempt_at), NEW.next_attempt_at);
    IF NEW.ordering = 'group' THEN
        PERFORM pg_advisory_xact_lock(hashtext('homing_job_group'), hashtext(NEW.group_id));
        NEW.position := nextval('homing_job_position');
        NEW.ready := NOT EXISTS (
            SELECT FROM dispatch_job
            WHERE group_id = NEW.group_id AND ordering = 'group' AND status IN ('PENDING', 'FAILED', 'IN_PROGRESS'));
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER homing_job_complete BEFORE INSERT ON dispatch_job
    FOR EACH ROW WHEN (NEW.target IS NULL) EXECUTE FUNCTION homing_job_complete();

CREATE TABLE dispatch_job_metadata (
    id              bigint PRIMARY KEY DEFAULT homing_tsid(),
    dispatch_job_id bigint NOT NULL,
    meta_key        varchar(100) NOT NULL,
    meta_value      varchar(500) NOT NULL
);
CREATE INDEX idx_metadata_job_id ON dispatch_job_metadata (dispatch_job_id);
-- Ids are time-sorted, so the newest jobs of a key and value are read from the end.
CREATE INDEX idx_metadata_key_value ON dispatch_job_metadata (meta_key, meta_value, dispatch_job_id);

CREATE STATISTICS homing_metadata_pairs (mcv, dependencies) ON meta_key, meta_value FROM dispatch_job_metadata;

CREATE TABLE dispatch_job_headers (
    dispatch_job_id bigint NOT NULL,
    header_name     varchar(200) NOT NULL,
    header_value    text NOT NULL
);
CREATE INDEX homing_header_job_id ON dispatch_job_headers (dispatch_job_id);

-- By weeks, so that pruning drops partitions instead of deleting rows.
CREATE TABLE dispatch_attempt (
    id                bigint NOT NULL DEFAULT homing_tsid(),
    dispatch_job_id   bigint NOT NULL,
    attempt_number    integer NOT NULL,
    attempted_at      timestamptz NOT NULL,
    completed_at      timestamptz,
    duration_millis   bigint,
    status            varchar(50) NOT NULL CHECK (status IN ('SUCCESS', 'FAILURE')),
    response_code     integer,
    response_body     text,
    error_message     text,
    error_stack_trace text,
    -- Ours: the word for grouping, the redacted headers, and whether the request may have been processed
    -- though no answer came.
    error_class       text,
    response_headers  jsonb,
    unknown           boolean NOT NULL DEFAULT false,
    created_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX idx_attempt_job_id ON dispatch_attempt (dispatch_job_id);
CREATE INDEX idx_attempt_status ON dispatch_attempt (status);
CREATE INDEX idx_attempt_attempted_at ON dispatch_attempt (attempted_at);
-- Takes what no week was made for, so that nothing is refused when nobody made one in time.
CREATE TABLE dispatch_attempt_rest PARTITION OF dispatch_attempt DEFAULT;

-- Makes the weeks that are missing, from this one on; their names.
CREATE FUNCTION homing_make_attempt_weeks(ahead integer) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    monday timestamptz := date_trunc('week', now(), 'UTC');
    week text;
BEGIN
    FOR n IN 0..ahead LOOP
        week := to_char((monday + n * interval '7 days') AT TIME ZONE 'UTC', '"dispatch_attempt_"IYYY"w"IW');
        CONTINUE WHEN to_regclass(week) IS NOT NULL;
        PERFORM pg_advisory_xact_lock(hashtext('homing_make_attempt_weeks'));
        CONTINUE WHEN to_regclass(week) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I PARTITION OF dispatch_attempt FOR VALUES FROM (%s) TO (%s)', week,
                homing_tsid_at(monday + n * interval '7 days'), homing_tsid_at(monday + (n + 1) * interval '7 days'));
            RETURN NEXT week;
        EXCEPTION WHEN check_violation THEN
            -- Rows of that week are in the rest already; they stay there.
            NULL;
        END;
    END LOOP;
END
$$;
SELECT homing_make_attempt_weeks(8);

CREATE TABLE dispatch_credentials (
    id                      bigint PRIMARY KEY DEFAULT homing_tsid(),
    bearer_token            text,
    signing_secret          text,
    algorithm               varchar(50) NOT NULL DEFAULT 'HMAC_SHA256',
    created_at              timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),
    -- Ours. Secrets are sealed: AES-256-GCM, bound to this row and their column.
    name                    varchar(100),
    signing_key             text,
    fingerprint             text,
    previous_bearer_token   text,
    previous_signing_secret text,
    previous_signing_key    text,
    previous_until          timestamptz
);

-- Queues and pools of the message router, as /api/config was told; one row at most.
CREATE TABLE homing_router_config (
    id         integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    config     json NOT NULL,
    version    bigint NOT NULL DEFAULT 1,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- What all processes know of a target. One that answers and has no limits needs no row.
CREATE TABLE homing_target (
    target          text PRIMARY KEY,
    max_concurrency integer CHECK (max_concurrency >= 1),
    rate_per_second double precision CHECK (rate_per_second > 0),
    tokens          double precision NOT NULL DEFAULT 1,
    tokens_at       timestamptz NOT NULL DEFAULT now(),
    paused_until    timestamptz,
    pause_reason    text,
    failures        integer NOT NULL DEFAULT 0,
    open_until      timestamptz,
    cooldown        double precision NOT NULL DEFAULT 0,
    last_error      text,
    updated_at      timestamptz NOT NULL DEFAULT now()
);
