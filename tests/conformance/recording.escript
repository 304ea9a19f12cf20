#!/usr/bin/env escript
%% Plays cases on Erlang/OTP's own supervisor: `escript recording.escript CASES`, where CASES holds one Erlang term a
%% case (recording.py writes it). Prints one JSON object a case: start, events, results, alive, sup_exit and ms.
%%
%% What happens is put into an ETS table under (monotonic time, unique number). The end of a child comes from a trace
%% of the process with the same stamp, so that one which is killed shows where it died, too.
-module(recording).
-mode(compile).
-export([init/1, start_child/2, start_child/3, child/4]).

main([File]) ->
    logger:set_primary_config(level, none),
    {ok, Cases} = file:consult(File),
    [io:format("~s~n", [json(play(Case))]) || Case <- Cases].

play({Flags, Children, Actions}) ->
    process_flag(trap_exit, true),
    ets:new(diary, [named_table, public, ordered_set]),
    ets:new(starts, [named_table, public]),
    ets:new(living, [named_table, public, ordered_set]),
    Tracer = spawn_link(fun tracer/0),
    register(tracer, Tracer),
    Began = erlang:monotonic_time(millisecond),
    Started = supervisor:start_link(?MODULE, {Flags, Children}),
    Results = case Started of
        {ok, Sup} -> lists:append([asked(Sup, Action) || Action <- Actions]);
        _ -> []
    end,
    timer:sleep(30),
    {Alive, Down} = fate(Started),
    Ms = erlang:monotonic_time(millisecond) - Began,
    Events = [Event || {_, Event} <- ets:tab2list(diary)],
    finish(Started, Tracer),
    {obj, [{start, started(Started)}, {events, Events}, {results, Results}, {alive, Alive}, {sup_exit, Down}, {ms, Ms}]}.

started({ok, _}) -> ok;
started({error, Why}) -> [error, plain(Why)].

fate({ok, Sup}) ->
    receive {'EXIT', Sup, Why} -> {false, plain(Why)}
    after 0 -> case get(down) of undefined -> {true, null}; Why -> {false, Why} end
    end;
fate(_) -> {false, null}.

finish(Started, Tracer) ->
    case Started of {ok, Sup} -> exit(Sup, kill); _ -> ok end,
    timer:sleep(5),
    [exit(Pid, kill) || {_, _, Pid} <- ets:tab2list(living)],
    unlink(Tracer),
    exit(Tracer, kill),
    timer:sleep(5),
    [ets:delete(Table) || Table <- [diary, starts, living]],
    erase(),
    flush().

flush() -> receive _ -> flush() after 0 -> ok end.

%% -- the supervisor and its children

init({Flags, Children}) -> {ok, {Flags, [spec(Child) || Child <- Children]}}.

spec(#{id := Id} = Child) ->
    Behaviour = maps:get(behaviour, Child, #{}),
    Known = maps:without([behaviour], Child),
    Known#{start => {?MODULE, start_child, [Id, Behaviour]}};
spec(Child) -> Child.

start_child(Id, Behaviour) -> start_child(Id, Behaviour, none).

start_child(Id, #{sup := #{flags := Flags, children := Children}}, _) ->
    case supervisor:start_link(?MODULE, {Flags, Children}) of
        {ok, Pid} ->
            erlang:trace(Pid, true, [procs, strict_monotonic_timestamp, {tracer, whereis(tracer)}]),
            ets:insert(living, {stamp(), Id, Pid}),
            tell([start, Id]),
            {ok, Pid};
        Error -> Error
    end;
start_child(Id, Behaviour, _) ->
    Number = ets:update_counter(starts, Id, 1, {Id, 0}),
    Is = fun(On, From) ->
        lists:member(Number, maps:get(On, Behaviour, [])) orelse Number >= maps:get(From, Behaviour, Number + 1)
    end,
    case {Is(crash_on, crash_from), Is(bad_on, bad_from), Is(ignore_on, ignore_from), Is(fail_on, fail_from)} of
        {true, _, _, _} -> tell([start_crash, Id]), error(boom);
        {_, true, _, _} -> tell([start_bad, Id]), some_garbage;
        {_, _, true, _} -> tell([start_ignored, Id]), ignore;
        {_, _, _, true} -> wait(Behaviour), tell([start_failed, Id]), {error, boom};
        _ -> wait(Behaviour), proc_lib:start_link(?MODULE, child, [self(), Id, Behaviour, whereis(tracer)])
    end.

wait(Behaviour) -> timer:sleep(maps:get(start_ms, Behaviour, 0)).

child(Parent, Id, Behaviour, Tracer) ->
    process_flag(trap_exit, true),
    erlang:trace(self(), true, [procs, strict_monotonic_timestamp, {tracer, Tracer}]),
    ets:insert(living, {stamp(), Id, self()}),
    tell([start, Id]),
    proc_lib:init_ack({ok, self()}),
    live(Parent, Id, Behaviour).

live(Parent, Id, Behaviour) ->
    receive
        {die, Why} -> exit(Why);
        unlink -> unlink(Parent), live(Parent, Id, Behaviour);
        {'EXIT', Parent, shutdown} ->
            tell([stopping, Id]),
            timer:sleep(maps:get(stop_ms, Behaviour, 0)),
            exit(maps:get(stop_reason, Behaviour, shutdown))
    end.

%% -- what is done to it

asked(Sup, Action) ->
    try perform(Sup, Action)
    catch exit:{noproc, _} -> [[plain(tuple_to_list(Action)), noproc]]
    end.

perform(_, {sleep, Ms}) -> timer:sleep(Ms), [];
perform(_, {die, Id, Why}) -> [Pid ! {die, Why} || Pid <- oldest(Id)], timer:sleep(60), [];
perform(_, {kill, Id}) -> [exit(Pid, kill) || Pid <- oldest(Id)], timer:sleep(80), [];
perform(_, {cast_unlink, Id}) -> [Pid ! unlink || Pid <- oldest(Id)], timer:sleep(20), [];
perform(Sup, {stop, Why}) ->
    exit(Sup, Why),
    receive {'EXIT', Sup, Down} -> put(down, plain(Down)), [[[stop, Why], [sup_down, plain(Down)]]]
    after 5000 -> [[[stop, Why], timeout]]
    end;
perform(Sup, {alive}) -> [[[alive], is_process_alive(Sup)]];
perform(Sup, {which}) ->
    [[[which], [[Id, pid(Child)] || {Id, Child, _, _} <- supervisor:which_children(Sup)]]];
perform(Sup, {count}) -> [[[count], [[Key, Value] || {Key, Value} <- supervisor:count_children(Sup)]]];
perform(Sup, {term, Id}) -> answer([term, Id], supervisor:terminate_child(Sup, Id));
perform(Sup, {delete, Id}) -> answer([delete, Id], supervisor:delete_child(Sup, Id));
perform(Sup, {restart, Id}) -> answer([restart, Id], supervisor:restart_child(Sup, Id));
perform(Sup, {add, Extra}) when is_tuple(Extra) -> answer([add, tuple_to_list(Extra)], supervisor:start_child(Sup, [none]));
perform(Sup, {add, Child}) -> answer([add, maps:get(id, Child, null)], supervisor:start_child(Sup, spec(Child))).

oldest(Id) ->
    lists:sublist([Pid || {_, Name, Pid} <- ets:tab2list(living), Name =:= Id, is_process_alive(Pid)], 1).

answer(_, ok) -> [];
answer(Call, {ok, Child}) -> [[Call, [ok, pid(Child)]]];
answer(Call, {error, {already_started, _}}) -> [[Call, [error, already_started]]];
answer(Call, {error, Why}) -> [[Call, [error, plain(Why)]]].

pid(Pid) when is_pid(Pid) -> pid;
pid(Other) -> Other.

%% -- the diary

stamp() -> {erlang:monotonic_time(nanosecond), erlang:unique_integer([monotonic])}.
tell(Event) -> ets:insert(diary, {stamp(), Event}).

tracer() ->
    receive
        {trace_ts, Pid, exit, Why, Stamp} ->
            [ets:insert(diary, {nano(Stamp), [exit, Id, plain(Why)]}) || {_, Id, Of} <- ets:tab2list(living), Of =:= Pid],
            tracer();
        _ -> tracer()
    end.

nano({Time, Number}) -> {Time, Number}.

%% -- JSON

%% Without what differs from run to run: pids, child specs and stack traces.
plain(Why) when is_atom(Why); is_number(Why) -> Why;
plain(Why) when is_pid(Why) -> pid;
plain(Spec) when element(1, Spec) =:= child -> childspec;
plain({'EXIT', _}) -> 'EXIT';
plain(Why) when is_tuple(Why) -> [plain(Each) || Each <- tuple_to_list(Why)];
plain(Why) when is_list(Why) -> [plain(Each) || Each <- Why];
plain(Why) when is_map(Why) -> childspec.

json({obj, Pairs}) -> ["{", lists:join(", ", [[json(Key), ": ", json(Value)] || {Key, Value} <- Pairs]), "}"];
json(true) -> "true";
json(false) -> "false";
json(null) -> "null";
json(Number) when is_integer(Number) -> integer_to_list(Number);
json(Atom) when is_atom(Atom) -> ["\"", atom_to_list(Atom), "\""];
json(List) when is_list(List) -> ["[", lists:join(", ", [json(Each) || Each <- List]), "]"].
