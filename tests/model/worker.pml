/* One rank of the job: worker/protocol/exchange*.cc, worker/membership/membership.cc. */

/* Whether a worker takes a result of epoch e and round r. */
#if defined(STALE_RESULT)
#define worker_takes(w, e, r) (phase[w] == RUNS && (e) == session_epoch[w] && (r) <= needed[w])
#elif defined(NO_PROMISE)
#define worker_takes(w, e, r) \
  (phase[w] <= JOINED && joined[w] != FRESH && (e) <= session_epoch[w] && (r) == needed[w])
#elif defined(NO_EPOCH_FENCE)
#define worker_takes(w, e, r) (phase[w] == RUNS && (r) == needed[w])
#else
#define worker_takes(w, e, r) \
  (phase[w] == RUNS && (e) == session_epoch[w] && same_round(r, needed[w]))
#endif

inline send_pushes(w, r) {
  at = 0;
  do
  :: at < FRAGMENTS ->
     pushes(session_epoch[w], w) =
         pushes(session_epoch[w], w) | push_bit(r, at, incarnation[w]);
     at++
  :: else -> break
  od;
  at = 0
}

inline send_copy(w) {
  assert(holds[w]); /* it gives only what it has */
  at = 0;
  do
  :: at < FRAGMENTS -> copy(session_epoch[w], w, at) = shadow[w * FRAGMENTS + at]; at++
  :: else -> break
  od;
  at = 0
}

/* The whole chunk goes to the application. */
inline consume(w) {
  at = 0;
  do
  :: at < FRAGMENTS ->
     assert(!(shadow[w * FRAGMENTS + at] & TWICE)); /* one contribution per member */
     assert(!(shadow[w * FRAGMENTS + at] & MIXED)); /* no round mixes with another */
     assert(counted(shadow[w * FRAGMENTS + at]) == contributors(shadow[w * FRAGMENTS + at]));
     assert(EXCLUSIONS > 0 || contributors(shadow[w * FRAGMENTS + at]) == EVERYBODY);
     history(w, needed[w] * FRAGMENTS + at) = shadow[w * FRAGMENTS + at];
     at++
  :: else -> break
  od;
  check_agreement();
  holds[w] = true;
  staged[w] = 0;
  needed[w]++;
  if
  :: needed[w] < ROUNDS -> send_pushes(w, needed[w])
  :: else
  fi
}

/* A fragment of a result overwrites the shadow. A result proves that every worker has pushed this
 * round, so no worker needs the result of the round before. */
#define TAKE_RESULT(w, e, r, f)                                                                   \
  :: d_step {                                                                                     \
       result(e, r, f) && worker_takes(w, e, r) && right_generation(w, e, r, f) &&                \
       !(staged[w] & (1 << f)) ->                                                                 \
       printf("worker %d takes the result of round %d, fragment %d, epoch %d: %o\n",              \
              w, r, f, e, result(e, r, f));                                                       \
       assert(r == needed[w]); /* no round mixes with another */                                  \
       shadow[w * FRAGMENTS + f] = result(e, r, f);                                               \
       holds[w] = false;                                                                          \
       staged[w] = staged[w] | (1 << f);                                                          \
       if                                                                                         \
       :: staged[w] == ALL_FRAGMENTS -> consume(w)                                                \
       :: else                                                                                    \
       fi                                                                                         \
     }

inline suspend(w) {
  printf("worker %d suspends\n", w);
  phase[w] = SUSPENDED;
#ifndef KEEP_STAGED
  staged[w] = 0
#endif
}

/* Starts a worker again that has crashed, was refused or was left behind. */
inline start_again(w) {
  assert(WORKER_CRASHES + EXCLUSIONS > 0); /* a rank without a fault loses nothing */
  phase[w] = STARTING;
  incarnation[w]++;
  assert(incarnation[w] < INCARNATIONS); /* the model's own bound */
  session_epoch[w] = 0;
  needed[w] = 0;
  holds[w] = false;
  staged[w] = 0;
  joined[w] = NOT_JOINED;
  told_open[w] = 0;
  told_to_give[w] = false;
  at = 0;
  do
  :: at < FRAGMENTS -> shadow[w * FRAGMENTS + at] = 0; at++
  :: else -> break
  od;
  at = 0;
  do
  :: at < ROUNDS * FRAGMENTS -> history(w, at) = 0; at++
  :: else -> break
  od;
  generation[w] = 0;
  absent[w] = 0;
  doomed[w] = false
}

/* Handles SESSION: compares the worker's state with the box's open round. */
inline take_session(w) {
  printf("worker %d: session of epoch %d, open round %d, give %d\n", w, epoch, told_open[w],
         told_to_give[w]);
  phase[w] = RUNS;
  session_epoch[w] = epoch;
  generation[w] = job_generation;
  absent[w] = EVERYBODY & ~members;
  if
  :: joined[w] == FRESH -> needed[w] = told_open[w]
  :: else
  fi;
  joined[w] = NOT_JOINED;
  if
  :: told_to_give[w] -> send_copy(w)
#ifdef RESUM
  :: !told_to_give[w] && told_open[w] + 1 == needed[w] -> send_pushes(w, told_open[w])
#endif
  :: else
  fi;
  if
#ifdef REFUSE_OTHER_HOLDERS
  :: told_open[w] + 1 == needed[w] && !told_to_give[w] -> start_again(w)
#endif
  :: else ->
     assert(told_open[w] + 1 >= needed[w] && told_open[w] <= needed[w] + 1);
     told_open[w] = 0;
     if
     :: needed[w] < ROUNDS -> send_pushes(w, needed[w])
     :: else
     fi
  fi
}

/* Whether this box has admitted a rank that resumes. The SESSION that said so may have been
 * lost. */
#ifdef REFUSE_UNHEARD
#define right_incarnation(w) (member[w] && session_epoch[w] == epoch)
#else
#define right_incarnation(w) (member[w] && admitted[w] == incarnation[w])
#endif

proctype Worker(byte w) {
end:
  do
  EACH_PACKET(TAKE_RESULT, w)
  /* The session is gone, and the worker notices that at some time. */
  :: d_step {
       phase[w] == RUNS &&
       (gathering || session_epoch[w] != epoch || !member[w]) && !all_finished ->
       suspend(w)
     }
  :: d_step {
       phase[w] == SUSPENDED && gathering ->
       printf("worker %d joins: needs round %d, holds %d\n", w, needed[w], holds[w]);
       phase[w] = JOINED;
       joined[w] = RESUMES
     }
  :: d_step {
       phase[w] == SUSPENDED && !gathering ->
       if
       :: right_incarnation(w) -> readmit(w, RESUMES, open)
       :: else -> printf("worker %d is refused\n", w); start_again(w)
       fi
     }
  /* The worker receives the message MembershipUpdate. */
  :: d_step {
       phase[w] == RUNS && !gathering && member[w] && session_epoch[w] == epoch &&
       generation[w] != job_generation ->
       generation[w] = job_generation;
       absent[w] = EVERYBODY & ~members
     }
  :: d_step {
       gathering && (left_behind(w) || beyond(w) && (!any(awaited) || exclusions > 0)) ->
       printf("worker %d is refused\n", w);
       start_again(w)
     }
  :: d_step { phase[w] == STARTING && gathering -> phase[w] = JOINED; joined[w] = FRESH }
  :: d_step { phase[w] == STARTING && !gathering -> readmit(w, FRESH, open) }
  :: d_step {
       phase[w] == STARTING && !member[w] && !gathering && !box_crashes &&
       copy_rank == NOBODY -> /* the job will not gather again */
       phase[w] = GONE
     }
  /* Another chunk of the tensor is a round behind: the application starts there. */
  :: d_step {
       phase[w] == STARTING && !gathering && kept[0] && claimed[w] == 0 ->
       readmit(w, FRESH, open - 1)
     }
  :: d_step { phase[w] == JOINED && !gathering -> take_session(w) }
  /* Retransmission, for which STATUS asks. It matters only after the network has lost
   * everything. */
  :: d_step {
       phase[w] == RUNS && !gathering && session_epoch[w] == epoch && needed[w] == open &&
       open < ROUNDS && claimed[w] != ALL_FRAGMENTS && admitted[w] == incarnation[w] &&
       !(pushes(epoch, w) & push_bit(open, FRAGMENTS - 1, incarnation[w])) ->
       send_pushes(w, open)
     }
  :: d_step {
       phase[w] == RUNS && !gathering && session_epoch[w] == epoch && copy_rank == w &&
       told_to_give[w] && copy(epoch, w, FRAGMENTS - 1) == 0 ->
       send_copy(w)
     }
  od
}
