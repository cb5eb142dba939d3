/* Shared reads: one index that maintenance publishes and seals, and an interactive worker that reads it.

   Claims, of every interleaving:
     no lost wake-up                  a read that waits is answered once its time is sealed, or dropped: a
                                      worker that still owes one when nothing can move is an invalid end state;
     no read below since              `page.since <= time` where an answer is taken (R5, R6, R8);
     no answer from a placeholder     `page.open` where an answer is taken (Z8).

   Model of what the code does: maintenance turns its page, then marks the id, then sends a notice if none is
   unacknowledged (R10); the multiplexer keeps a mark for the worker, and clears it before it writes the notice
   (clusterd/multiplexer/notices.py); a worker parks a read, which counts in its hold, before it looks at the page
   (clusterd/runtime/reads.py); since follows the least of what both have applied
   (clusterd/runtime/collection.py). Compaction to DROP is the drop; a closed page has nothing to read, so its
   since is DROP.

   Refuted, each by a macro, and to be found wrong by `tests/test_models.py`:
     -DMARK_BEFORE_PAGE     the notice may be taken before there is anything to see        lost wake-up
     -DCLEAR_AFTER_WRITE    news that comes while a notice is written is cleared with it   lost wake-up
     -DLOOK_THEN_DRAIN      notices that came after the look are thrown away               lost wake-up
     -DNO_HOLD              compaction is broadcast, and maintenance waits for nobody      below since (Z1)
     -DPARKED_DOES_NOT_COUNT  a worker reports what it applied, whatever it has parked     below since
     -DFRESH_IS_EMPTY       the upper of a page that is not there is the empty frontier    placeholder (Z8)

   Assumed: everybody goes on until nothing is left to do; pipes keep their order; turning a page is one step
   (publication.py argues for that). Not modelled: several ids, aliases, sessions, oks and errs apart.
   Nothing here runs for ever, so a read that is never answered shows as a state with no way on. */

#define TIMES 2    /* maintenance seals 0 .. TIMES - 1 */
#define READS 2    /* of the controller, at any time that it has not let go */
#define MOVES 2    /* compactions, the drop among them */
#define DROP 7

mtype = { READ, COMPACT, NOTICE };

typedef Page { bool open; byte since; byte upper };
Page page;

chan to_worker = [3] of { mtype, byte };
chan to_maintenance = [2] of { byte };           /* compactions: all that it is told of this index */
chan news = [1] of { bit };                      /* maintenance: look again at this id */
chan acknowledged = [1] of { bit };
chan applied = [1] of { byte };                  /* the frontier at which the worker counts */
bool told_all;                                   /* the controller says no more */

#define least(a, b) (a < b -> a : b)

/* Since follows the least of what maintenance and the worker have applied. */
inline compact() {
    d_step {
        hold = compacted;
        #ifndef NO_HOLD
        hold = least(hold, counts);
        #endif
        frontier = 0;
        page.since = hold
    }
}

active proctype maintenance() {
    byte compacted = 0, hold, frontier;
    byte counts = 0;                             /* begins at the as_of: the standing hold */
    bool marked, unacknowledged;

    end: do
    :: page.since < DROP && (!page.open || page.upper < TIMES) -> /* publish, or seal one time more */
        #ifdef MARK_BEFORE_PAGE
        marked = true;
        if
        :: !unacknowledged -> news!1; unacknowledged = true; marked = false
        :: unacknowledged
        fi;
        #endif
        atomic {
            if
            :: !page.open -> page.open = true
            :: page.open -> page.upper++
            fi
        };
        #ifndef MARK_BEFORE_PAGE
        marked = true
        #endif
    :: atomic { marked && !unacknowledged -> marked = false; unacknowledged = true; news!1 }
    :: acknowledged?_ -> unacknowledged = false
    :: atomic { to_maintenance?frontier -> compacted = frontier; compact() }
    :: atomic { applied?frontier -> counts = frontier; compact() }
    od;
}

/* The multiplexer, with the controller that speaks to it: routing a command is one step. */
active proctype multiplexer() {
    byte let_go = 0, reads = 0, moves = 0, time;
    bool marked, writing;

    end: do
    :: atomic { news?_ -> acknowledged!1; marked = true }
    :: !told_all -> atomic {
        if
        :: reads < READS && let_go < TIMES ->
            reads++;
            time = let_go;
            do
            :: time < TIMES - 1 -> time++
            :: break
            od;
            to_worker!READ, time
        :: moves < MOVES && let_go < DROP ->
            moves++;
            if
            :: let_go < TIMES -> let_go++
            :: let_go = DROP
            fi;
            to_maintenance!let_go;
            to_worker!COMPACT, let_go
        :: told_all = true
        fi;
        time = 0 }
    #ifdef CLEAR_AFTER_WRITE
    :: atomic { marked && !writing && nfull(to_worker) -> writing = true; to_worker!NOTICE, 0 }
    :: atomic { writing -> writing = false; marked = false }
    #else
    :: atomic { marked && !writing -> marked = false; writing = true }
    :: atomic { writing && nfull(to_worker) -> writing = false; to_worker!NOTICE, 0 }
    #endif
    od
}

#ifdef FRESH_IS_EMPTY
#define is_sealed(time) (!page.open || page.upper > time)
#else
#define is_sealed(time) (page.open && page.upper > time)
#endif

/* Answer what can be: an answer is taken from the page as it stands, in one step. */
inline look() {
    d_step {
        time = 0;
        do
        :: time < TIMES ->
            if
            :: parked[time] && (is_sealed(time) || page.since == DROP) ->
                assert(page.since <= time);
                assert(page.open);
                parked[time] = false
            :: else
            fi;
            time++
        :: else -> break
        od;
        time = 0
    }
}

/* At which frontier this worker counts: the least of what it applied and what it has parked. */
inline report() {
    d_step {
        counts = compacted;
        #ifndef PARKED_DOES_NOT_COUNT
        time = 0;
        do
        :: time < TIMES ->
            if
            :: parked[time] -> counts = least(counts, time)
            :: else
            fi;
            time++
        :: else -> break
        od;
        #endif
        time = 0
    }
    if
    :: counts != reported -> reported = counts; applied!counts
    :: else
    fi
}

active proctype worker() {
    byte compacted = 0, reported = 0, counts, time;
    bool parked[TIMES];                          /* reads of one time are one */

    do
    :: atomic { to_worker?READ, time -> parked[time] = true; look(); report() }
    :: atomic { to_worker?COMPACT, compacted ->
        if
        :: compacted == DROP -> parked[0] = false; parked[1] = false
        :: else
        fi;
        report() }
    #ifdef LOOK_THEN_DRAIN
    :: to_worker?[NOTICE, 0] ->
        look();
        do
        :: to_worker?[NOTICE, 0] -> to_worker?NOTICE, 0
        :: else -> break
        od;
        report()
    #else
    :: atomic { to_worker?NOTICE, _ -> look(); report() }
    #endif
    :: told_all && empty(to_worker) && !parked[0] && !parked[1] -> break
    od;
    end: do /* nothing is owed: who has nothing to do may stop here, and still takes what is sent */
    :: to_worker?_, _
    od
}
