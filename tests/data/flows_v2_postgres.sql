CREATE TABLE lifecycle_clock (
    one boolean DEFAULT true NOT NULL,
    correction double precision DEFAULT 0 NOT NULL,
    seen double precision DEFAULT 0 NOT NULL,
    CONSTRAINT lifecycle_clock_one_check CHECK (one)
);
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
    undone integer DEFAULT 0 NOT NULL,
    due double precision DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE lifecycle_flow_changes (
    flow text NOT NULL,
    seq bigint NOT NULL,
    at double precision NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    old text NOT NULL,
    new text NOT NULL,
    reason text NOT NULL,
    attempt integer NOT NULL,
    result text
);
CREATE TABLE lifecycle_flows (
    number bigint NOT NULL,
    id text NOT NULL,
    name text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    seq bigint NOT NULL,
    store text NOT NULL,
    error text NOT NULL,
    at double precision NOT NULL,
    stamp bigint NOT NULL
)
WITH (fillfactor='70');
ALTER TABLE lifecycle_flows ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lifecycle_flows_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE lifecycle_jobs (
    number bigint NOT NULL,
    id text NOT NULL,
    flow text NOT NULL,
    rank integer NOT NULL,
    store text NOT NULL,
    posted double precision NOT NULL,
    max_attempts integer NOT NULL,
    state text NOT NULL,
    owner text NOT NULL,
    token text NOT NULL,
    epoch bigint NOT NULL,
    until double precision NOT NULL,
    attempts integer NOT NULL,
    due double precision NOT NULL,
    outcome text NOT NULL,
    error text NOT NULL,
    ended double precision NOT NULL,
    stamp bigint NOT NULL
);
ALTER TABLE lifecycle_jobs ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lifecycle_jobs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE lifecycle_outbox (
    number bigint NOT NULL,
    id text NOT NULL,
    topic text NOT NULL,
    data text NOT NULL,
    until double precision NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    dead boolean DEFAULT false NOT NULL
);
ALTER TABLE lifecycle_outbox ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME lifecycle_outbox_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE lifecycle_schemas (
    name text NOT NULL,
    version integer NOT NULL
);
INSERT INTO lifecycle_clock VALUES (true, 0, 1795355645.356489);
INSERT INTO lifecycle_flow_atoms VALUES ('d1', 'one', 'task', 'SUCCESS', 'EXECUTE', 1, 1, '1', NULL, NULL, NULL, NULL, 0, 0);
INSERT INTO lifecycle_flow_atoms VALUES ('o7', 'charge', 'task', 'SUCCESS', 'EXECUTE', 2, 2, '40', NULL, NULL, NULL, NULL, 1, 0);
INSERT INTO lifecycle_flow_atoms VALUES ('o7', 'ship', 'task', 'RUNNING', 'EXECUTE', 2, 2, NULL, NULL, NULL, NULL, NULL, 0, 0);
INSERT INTO lifecycle_flow_atoms VALUES ('o7', 'order_retry', 'retry', 'SUCCESS', 'EXECUTE', 2, 2, '2', NULL, NULL, NULL, '[["1", {"ship": "[\"OSError\", \"no connection\", \"Traceback (most recent call last):\\n  File \\\"lifecycle/flows/crews.py\\\", line 116, in _carry_out\\n    return await self._call(atom, call)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 129, in _call\\n    return await self._result(atom.fn, call.arguments, in_thread=atom.in_thread)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 139, in _result\\n    return await result if inspect.isawaitable(result) else result\\n           ^^^^^^^^^^^^\\n  File \\\"<string>\\\", line 12, in ship\\n    if current_task().attempt == 1: raise OSError(\\\"no connection\\\")\\n                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\nOSError: no connection\\n\"]"}], ["2", {}]]', 0, 0);
INSERT INTO lifecycle_flow_changes VALUES ('d1', 1, 1795355645.3700836, 'flow', 'done', 'PENDING', 'RUNNING', '', 0, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('d1', 2, 1795355645.3700964, 'task', 'one', 'PENDING', 'RUNNING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('d1', 3, 1795355645.375366, 'task', 'one', 'RUNNING', 'SUCCESS', '', 1, '1');
INSERT INTO lifecycle_flow_changes VALUES ('d1', 4, 1795355645.375366, 'flow', 'done', 'RUNNING', 'SUCCESS', '', 0, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 1, 1795355645.3768952, 'flow', 'order', 'PENDING', 'RUNNING', '', 0, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 2, 1795355645.3769052, 'retry', 'order_retry', 'PENDING', 'RUNNING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 3, 1795355645.3776329, 'retry', 'order_retry', 'RUNNING', 'SUCCESS', '', 1, '1');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 4, 1795355645.3776329, 'task', 'charge', 'PENDING', 'RUNNING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 5, 1795355645.3783681, 'task', 'charge', 'RUNNING', 'SUCCESS', '', 1, '40');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 6, 1795355645.3783681, 'task', 'ship', 'PENDING', 'RUNNING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 7, 1795355645.3798885, 'task', 'ship', 'RUNNING', 'FAILURE', '', 1, '["OSError", "no connection", "Traceback (most recent call last):\n  File \"lifecycle/flows/crews.py\", line 116, in _carry_out\n    return await self._call(atom, call)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 129, in _call\n    return await self._result(atom.fn, call.arguments, in_thread=atom.in_thread)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 139, in _result\n    return await result if inspect.isawaitable(result) else result\n           ^^^^^^^^^^^^\n  File \"<string>\", line 12, in ship\n    if current_task().attempt == 1: raise OSError(\"no connection\")\n                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nOSError: no connection\n"]');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 8, 1795355645.3798885, 'task', 'ship', 'FAILURE', 'REVERTING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 9, 1795355645.380592, 'task', 'ship', 'REVERTING', 'REVERTED', '', 1, 'null');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 10, 1795355645.380592, 'task', 'charge', 'SUCCESS', 'REVERTING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 11, 1795355645.381415, 'task', 'charge', 'REVERTING', 'REVERTED', '', 1, 'null');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 12, 1795355645.381415, 'retry', 'order_retry', 'SUCCESS', 'RETRYING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 13, 1795355645.381415, 'task', 'charge', 'REVERTED', 'PENDING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 14, 1795355645.381415, 'task', 'ship', 'REVERTED', 'PENDING', '', 1, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 15, 1795355645.381415, 'retry', 'order_retry', 'RETRYING', 'RUNNING', '', 2, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 16, 1795355645.3820016, 'retry', 'order_retry', 'RUNNING', 'SUCCESS', '', 2, '2');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 17, 1795355645.3820016, 'task', 'charge', 'PENDING', 'RUNNING', '', 2, NULL);
INSERT INTO lifecycle_flow_changes VALUES ('o7', 18, 1795355645.382573, 'task', 'charge', 'RUNNING', 'SUCCESS', '', 2, '40');
INSERT INTO lifecycle_flow_changes VALUES ('o7', 19, 1795355645.382573, 'task', 'ship', 'PENDING', 'RUNNING', '', 2, NULL);
INSERT INTO lifecycle_flows OVERRIDING SYSTEM VALUE VALUES (1, 'd1', 'done', 'SUCCESS', 1, 1, 'host-1-2058688b46f0', 4, '{}', '', 1795355645.375366, 1795355645301920630);
INSERT INTO lifecycle_flows OVERRIDING SYSTEM VALUE VALUES (2, 'o7', 'order', 'RUNNING', 1, 1, 'host-1-2058688b46f0', 19, '{}', '', 1795355645.3769052, 1795355645301920639);
INSERT INTO lifecycle_jobs OVERRIDING SYSTEM VALUE VALUES (1, 'job-1', 'order', 1, '{}', 1795355645.3627634, 1, 'UNCLAIMED', '', '', 0, 0, 0, 0, '', '', 0, 0);
INSERT INTO lifecycle_jobs OVERRIDING SYSTEM VALUE VALUES (2, 'job-2', 'order', 2, '{}', 1795355645.3641164, 1, 'UNCLAIMED', '', '', 0, 0, 0, 1795359245.3641164, '', '', 0, 0);
INSERT INTO lifecycle_jobs OVERRIDING SYSTEM VALUE VALUES (3, 'job-3', 'order', 2, '{}', 1795355645.3646288, 1, 'COMPLETE', '', '', 1, 0, 1, 0, 'trashed', 'no such image', 1795355645.366663, 1795355645301920625);
INSERT INTO lifecycle_jobs OVERRIDING SYSTEM VALUE VALUES (4, 'job-4', 'order', 2, '{}', 1795355645.3673024, 1, 'COMPLETE', '', '', 1, 0, 1, 0, 'SUCCESS', '', 1795355645.3687868, 1795355645301920627);
INSERT INTO lifecycle_outbox OVERRIDING SYSTEM VALUE VALUES (2, 'o7/charge/2/1', 'order/charged', '{"order":"o7"}', 0, 0, '', false);
INSERT INTO lifecycle_outbox OVERRIDING SYSTEM VALUE VALUES (1, 'o7/charge/1/1', 'order/charged', '{"order":"o7"}', 0, 3, 'nobody takes it', true);
INSERT INTO lifecycle_schemas VALUES ('flows', 2);
SELECT pg_catalog.setval('lifecycle_flows_number_seq', 2, true);
SELECT pg_catalog.setval('lifecycle_jobs_number_seq', 4, true);
SELECT pg_catalog.setval('lifecycle_outbox_number_seq', 2, true);
ALTER TABLE ONLY lifecycle_clock
    ADD CONSTRAINT lifecycle_clock_pkey PRIMARY KEY (one);
ALTER TABLE ONLY lifecycle_flow_atoms
    ADD CONSTRAINT lifecycle_flow_atoms_pkey PRIMARY KEY (flow, name);
ALTER TABLE ONLY lifecycle_flow_changes
    ADD CONSTRAINT lifecycle_flow_changes_pkey PRIMARY KEY (flow, seq);
ALTER TABLE ONLY lifecycle_flows
    ADD CONSTRAINT lifecycle_flows_pkey PRIMARY KEY (id);
ALTER TABLE ONLY lifecycle_jobs
    ADD CONSTRAINT lifecycle_jobs_id_key UNIQUE (id);
ALTER TABLE ONLY lifecycle_jobs
    ADD CONSTRAINT lifecycle_jobs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY lifecycle_outbox
    ADD CONSTRAINT lifecycle_outbox_pkey PRIMARY KEY (number);
ALTER TABLE ONLY lifecycle_schemas
    ADD CONSTRAINT lifecycle_schemas_pkey PRIMARY KEY (name);
CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows USING btree (name, state);
CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs USING btree (until) WHERE (state = 'CLAIMED'::text);
CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs USING btree (ended) WHERE (state = 'COMPLETE'::text);
CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs USING btree (due) WHERE ((state = 'UNCLAIMED'::text) AND (due > (0)::double precision));
CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs USING btree (flow, rank, number) WHERE ((state = 'UNCLAIMED'::text) AND (due = (0)::double precision));
CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox USING btree (number) WHERE dead;
CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox USING btree (until, number) WHERE (NOT dead);
