BEGIN TRANSACTION;
CREATE TABLE lifecycle_flow_atoms (
                flow TEXT NOT NULL,
                name TEXT NOT NULL,
                kind TEXT NOT NULL,
                state TEXT NOT NULL,
                intention TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                round INTEGER NOT NULL,
                result TEXT,
                failure TEXT,
                revert_result TEXT,
                revert_failure TEXT,
                history TEXT,
                PRIMARY KEY (flow, name)
            ) WITHOUT ROWID;
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','charge','task','SUCCESS','EXECUTE',2,2,'"paid"',NULL,NULL,NULL,NULL);
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','order_retry','retry','SUCCESS','EXECUTE',2,2,'2',NULL,NULL,NULL,'[["1", {"charge": "[\"OSError\", \"no connection\", \"Traceback (most recent call last):\\n  File \\\"lifecycle/flows/crews.py\\\", line 112, in _carry_out\\n    return await self._call(atom, call)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 121, in _call\\n    return await _result(atom.fn, call.arguments)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 188, in _result\\n    return await result if inspect.isawaitable(result) else result\\n           ^^^^^^^^^^^^\\n  File \\\"<string>\\\", line 7, in charge\\nOSError: no connection\\n\"]"}], ["2", {}]]');
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','ship','task','RUNNING','EXECUTE',1,1,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE lifecycle_flow_changes (
                flow TEXT NOT NULL,
                seq INTEGER NOT NULL,
                at REAL NOT NULL,
                kind TEXT NOT NULL,
                name TEXT NOT NULL,
                old TEXT NOT NULL,
                new TEXT NOT NULL,
                reason TEXT NOT NULL,
                attempt INTEGER NOT NULL,
                result TEXT,
                PRIMARY KEY (flow, seq)
            ) WITHOUT ROWID;
INSERT INTO "lifecycle_flow_changes" VALUES('o7',1,1.79534253452254390723e+09,'flow','order','PENDING','RUNNING','',0,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',2,1.79534253452273869517e+09,'retry','order_retry','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',3,1.79534253452303504939e+09,'retry','order_retry','RUNNING','SUCCESS','',1,'1');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',4,1.79534253452308702461e+09,'task','charge','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',5,1.79534253452389430997e+09,'task','charge','RUNNING','FAILURE','',1,'["OSError", "no connection", "Traceback (most recent call last):\n  File \"lifecycle/flows/crews.py\", line 112, in _carry_out\n    return await self._call(atom, call)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 121, in _call\n    return await _result(atom.fn, call.arguments)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 188, in _result\n    return await result if inspect.isawaitable(result) else result\n           ^^^^^^^^^^^^\n  File \"<string>\", line 7, in charge\nOSError: no connection\n"]');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',6,1.79534253452395677562e+09,'task','charge','FAILURE','REVERTING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',7,1.79534253452424454686e+09,'task','charge','REVERTING','REVERTED','',1,'null');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',8,1.79534253452426576609e+09,'retry','order_retry','SUCCESS','RETRYING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',9,1.79534253452426576609e+09,'task','charge','REVERTED','PENDING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',10,1.79534253452426576609e+09,'retry','order_retry','RETRYING','RUNNING','',2,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',11,1.79534253452448225025e+09,'retry','order_retry','RUNNING','SUCCESS','',2,'2');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',12,1.79534253452450370792e+09,'task','charge','PENDING','RUNNING','',2,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',13,1.79534253452469730379e+09,'task','charge','RUNNING','SUCCESS','',2,'"paid"');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',14,1.79534253452471327782e+09,'task','ship','PENDING','RUNNING','',1,NULL);
CREATE TABLE lifecycle_flows (
                id TEXT NOT NULL UNIQUE,
                name TEXT NOT NULL,
                state TEXT NOT NULL,
                version INTEGER NOT NULL,
                epoch INTEGER NOT NULL,
                owner TEXT NOT NULL,
                store TEXT NOT NULL,
                error TEXT NOT NULL,
                at REAL NOT NULL
            );
INSERT INTO "lifecycle_flows" VALUES('o7','order','RUNNING',1,1,'17727-1988599ea403','{}','',1.79534253452254390723e+09);
CREATE TABLE lifecycle_jobs (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                flow TEXT NOT NULL,
                rank INTEGER NOT NULL,
                store TEXT NOT NULL,
                posted REAL NOT NULL,
                max_attempts INTEGER NOT NULL,
                state TEXT NOT NULL,
                owner TEXT NOT NULL,
                token TEXT NOT NULL,
                epoch INTEGER NOT NULL,
                until REAL NOT NULL,
                attempts INTEGER NOT NULL,
                due REAL NOT NULL,
                outcome TEXT NOT NULL,
                error TEXT NOT NULL,
                ended REAL NOT NULL
            );
INSERT INTO "lifecycle_jobs" VALUES(1,'job-1','order',2,'{}',1.79534253452045321469e+09,10,'UNCLAIMED','','',0,0.0,0,0.0,'','',0.0);
INSERT INTO "lifecycle_jobs" VALUES(2,'job-2','order',2,'{}',1.79534253452096343034e+09,10,'UNCLAIMED','','',0,0.0,0,1.79534253952096343044e+09,'','',0.0);
CREATE TABLE lifecycle_outbox (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL,
                topic TEXT NOT NULL,
                data TEXT NOT NULL,
                until REAL NOT NULL
            );
INSERT INTO "lifecycle_outbox" VALUES(1,'o7/charge/2/1','charged','{"key":"o7/charge/2"}',0.0);
CREATE TABLE lifecycle_schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID
;
INSERT INTO "lifecycle_schemas" VALUES('flows',1);
INSERT INTO "lifecycle_schemas" VALUES('jobs',1);
INSERT INTO "lifecycle_schemas" VALUES('outbox',1);
CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state);
CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (flow, rank, number)
                WHERE state = 'UNCLAIMED' AND due = 0;
CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0;
CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED';
CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('lifecycle_jobs',2);
INSERT INTO "sqlite_sequence" VALUES('lifecycle_outbox',1);
COMMIT;
