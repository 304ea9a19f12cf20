BEGIN TRANSACTION;
CREATE TABLE lifecycle_clock (boot TEXT NOT NULL, ahead REAL NOT NULL, seen REAL NOT NULL);
INSERT INTO "lifecycle_clock" VALUES('00394ab7-94c1-4743-9934-0a3fbc08b519',1.79534184228689432149e+09,1.79535564360361766817e+09);
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
                history TEXT, undone INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0,
                PRIMARY KEY (flow, name)
            ) WITHOUT ROWID;
INSERT INTO "lifecycle_flow_atoms" VALUES('d1','one','task','SUCCESS','EXECUTE',1,1,'1',NULL,NULL,NULL,NULL,0,0.0);
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','charge','task','SUCCESS','EXECUTE',2,2,'40',NULL,NULL,NULL,NULL,1,0.0);
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','order_retry','retry','SUCCESS','EXECUTE',2,2,'2',NULL,NULL,NULL,'[["1", {"ship": "[\"OSError\", \"no connection\", \"Traceback (most recent call last):\\n  File \\\"lifecycle/flows/crews.py\\\", line 116, in _carry_out\\n    return await self._call(atom, call)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 129, in _call\\n    return await self._result(atom.fn, call.arguments, in_thread=atom.in_thread)\\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\n  File \\\"lifecycle/flows/crews.py\\\", line 139, in _result\\n    return await result if inspect.isawaitable(result) else result\\n           ^^^^^^^^^^^^\\n  File \\\"<string>\\\", line 12, in ship\\n    if current_task().attempt == 1: raise OSError(\\\"no connection\\\")\\n                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\\nOSError: no connection\\n\"]"}], ["2", {}]]',0,0.0);
INSERT INTO "lifecycle_flow_atoms" VALUES('o7','ship','task','RUNNING','EXECUTE',2,2,NULL,NULL,NULL,NULL,NULL,0,0.0);
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
INSERT INTO "lifecycle_flow_changes" VALUES('d1',1,1.79535564360759830474e+09,'flow','done','PENDING','RUNNING','',0,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('d1',2,1.79535564360760712624e+09,'task','one','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('d1',3,1.79535564360832643505e+09,'task','one','RUNNING','SUCCESS','',1,'1');
INSERT INTO "lifecycle_flow_changes" VALUES('d1',4,1.79535564360832643505e+09,'flow','done','RUNNING','SUCCESS','',0,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',1,1.79535564360901284215e+09,'flow','order','PENDING','RUNNING','',0,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',2,1.79535564360901832587e+09,'retry','order_retry','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',3,1.7953556436092364788e+09,'retry','order_retry','RUNNING','SUCCESS','',1,'1');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',4,1.7953556436092364788e+09,'task','charge','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',5,1.79535564360952353477e+09,'task','charge','RUNNING','SUCCESS','',1,'40');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',6,1.79535564360952353477e+09,'task','ship','PENDING','RUNNING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',7,1.79535564361035656927e+09,'task','ship','RUNNING','FAILURE','',1,'["OSError", "no connection", "Traceback (most recent call last):\n  File \"lifecycle/flows/crews.py\", line 116, in _carry_out\n    return await self._call(atom, call)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 129, in _call\n    return await self._result(atom.fn, call.arguments, in_thread=atom.in_thread)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"lifecycle/flows/crews.py\", line 139, in _result\n    return await result if inspect.isawaitable(result) else result\n           ^^^^^^^^^^^^\n  File \"<string>\", line 12, in ship\n    if current_task().attempt == 1: raise OSError(\"no connection\")\n                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nOSError: no connection\n"]');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',8,1.79535564361035656927e+09,'task','ship','FAILURE','REVERTING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',9,1.79535564361066436768e+09,'task','ship','REVERTING','REVERTED','',1,'null');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',10,1.79535564361066436768e+09,'task','charge','SUCCESS','REVERTING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',11,1.79535564361098575586e+09,'task','charge','REVERTING','REVERTED','',1,'null');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',12,1.79535564361098575586e+09,'retry','order_retry','SUCCESS','RETRYING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',13,1.79535564361098575586e+09,'task','charge','REVERTED','PENDING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',14,1.79535564361098575586e+09,'task','ship','REVERTED','PENDING','',1,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',15,1.79535564361098575586e+09,'retry','order_retry','RETRYING','RUNNING','',2,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',16,1.79535564361127781868e+09,'retry','order_retry','RUNNING','SUCCESS','',2,'2');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',17,1.79535564361127781868e+09,'task','charge','PENDING','RUNNING','',2,NULL);
INSERT INTO "lifecycle_flow_changes" VALUES('o7',18,1.79535564361148381232e+09,'task','charge','RUNNING','SUCCESS','',2,'40');
INSERT INTO "lifecycle_flow_changes" VALUES('o7',19,1.79535564361148381232e+09,'task','ship','PENDING','RUNNING','',2,NULL);
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
INSERT INTO "lifecycle_flows" VALUES('d1','done','SUCCESS',1,1,'1-8f599f959899','{}','',1.79535564360832643505e+09);
INSERT INTO "lifecycle_flows" VALUES('o7','order','RUNNING',1,1,'1-8f599f959899','{}','',1.79535564360901832587e+09);
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
INSERT INTO "lifecycle_jobs" VALUES(1,'job-1','order',1,'{}',1.79535564360428762436e+09,1,'UNCLAIMED','','',0,0.0,0,0.0,'','',0.0);
INSERT INTO "lifecycle_jobs" VALUES(2,'job-2','order',2,'{}',1.79535564360461497306e+09,1,'UNCLAIMED','','',0,0.0,0,1.79535924360461497306e+09,'','',0.0);
INSERT INTO "lifecycle_jobs" VALUES(3,'job-3','order',2,'{}',1.79535564360482883454e+09,1,'COMPLETE','','',1,0.0,1,0.0,'trashed','no such image',1.79535564360554313664e+09);
INSERT INTO "lifecycle_jobs" VALUES(4,'job-4','order',2,'{}',1.79535564360569596283e+09,1,'COMPLETE','','',1,0.0,1,0.0,'SUCCESS','',1.79535564360698652263e+09);
CREATE TABLE lifecycle_outbox (
                number INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL,
                topic TEXT NOT NULL,
                data TEXT NOT NULL,
                until REAL NOT NULL
            , failures INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '', dead INTEGER NOT NULL DEFAULT 0);
INSERT INTO "lifecycle_outbox" VALUES(1,'o7/charge/1/1','order/charged','{"order":"o7"}',0.0,3,'nobody takes it',1);
INSERT INTO "lifecycle_outbox" VALUES(2,'o7/charge/2/1','order/charged','{"order":"o7"}',0.0,0,'',0);
CREATE TABLE lifecycle_schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID
;
INSERT INTO "lifecycle_schemas" VALUES('flows',2);
INSERT INTO "lifecycle_schemas" VALUES('jobs',2);
INSERT INTO "lifecycle_schemas" VALUES('outbox',2);
CREATE INDEX lifecycle_flows_by_name ON lifecycle_flows (name, state);
CREATE INDEX lifecycle_jobs_ready ON lifecycle_jobs (flow, rank, number)
                WHERE state = 'UNCLAIMED' AND due = 0;
CREATE INDEX lifecycle_jobs_delayed ON lifecycle_jobs (due) WHERE state = 'UNCLAIMED' AND due > 0;
CREATE INDEX lifecycle_jobs_claimed ON lifecycle_jobs (until) WHERE state = 'CLAIMED';
CREATE INDEX lifecycle_jobs_complete ON lifecycle_jobs (ended) WHERE state = 'COMPLETE';
CREATE INDEX lifecycle_outbox_free ON lifecycle_outbox (until, number) WHERE dead = 0;
CREATE INDEX lifecycle_outbox_dead ON lifecycle_outbox (number) WHERE dead = 1;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('lifecycle_jobs',4);
INSERT INTO "sqlite_sequence" VALUES('lifecycle_outbox',2);
COMMIT;
