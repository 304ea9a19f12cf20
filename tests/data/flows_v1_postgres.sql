CREATE TABLE lifecycle_flows (
    number bigint GENERATED ALWAYS AS IDENTITY,
    id text PRIMARY KEY,
    name text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    seq bigint NOT NULL,
    store text NOT NULL,
    error text NOT NULL,
    at float8 NOT NULL,
    stamp bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name);
CREATE TABLE lifecycle_flow_atoms (
    flow text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    state text NOT NULL,
    intention text NOT NULL,
    attempt integer NOT NULL,
    round integer NOT NULL,
    result text,
    failure text,
    revert_result text,
    revert_failure text,
    history text,
    PRIMARY KEY (flow, name)
) WITH (fillfactor = 70);
CREATE TABLE lifecycle_flow_changes (
    flow text NOT NULL,
    seq bigint NOT NULL,
    at float8 NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    old text NOT NULL,
    new text NOT NULL,
    reason text NOT NULL,
    attempt integer NOT NULL,
    result text,
    PRIMARY KEY (flow, seq)
);
CREATE TABLE lifecycle_jobs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    flow text NOT NULL,
    rank integer NOT NULL,
    store text NOT NULL,
    posted float8 NOT NULL,
    max_attempts integer NOT NULL,
    state text NOT NULL,
    owner text NOT NULL,
    token text NOT NULL,
    epoch bigint NOT NULL,
    until float8 NOT NULL,
    attempts integer NOT NULL,
    due float8 NOT NULL,
    outcome text NOT NULL,
    error text NOT NULL,
    ended float8 NOT NULL,
    stamp bigint NOT NULL
);
CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (rank, number, flow)
    WHERE state = 'UNCLAIMED' AND due = 0;
CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0;
CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED';
CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE';
CREATE TABLE lifecycle_outbox (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    topic text NOT NULL,
    data text NOT NULL,
    until float8 NOT NULL
);
CREATE TABLE lifecycle_schemas (name text PRIMARY KEY, version integer NOT NULL);
INSERT INTO lifecycle_schemas VALUES ('flows', 1);
