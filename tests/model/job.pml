/* What the job's control does about a restart, a rejoin and an exclusion: appliance/control/. */

inline choose_giver() {
  copy_rank = 0;
  do
  :: givers & (1 << copy_rank) -> break
  :: else -> copy_rank++
  od;
  claimed[copy_rank] = 0
}

/* A rank that was to give a copy is gone for good. If another one holds it too, that one gives it;
 * else nobody living has consumed the round, and it is summed from new pushes. */
inline lose_giver(w) {
  givers = givers & ~(1 << w);
  if
  :: copy_rank == w && givers == 0 -> printf("box: nobody has the copy\n"); clear_round()
  :: copy_rank == w && givers != 0 ->
     claimed[w] = ALL_FRAGMENTS;
     choose_giver();
     told_to_give[copy_rank] = true
  :: else
  fi
}

/* A rank's JOIN while the job runs: new keys replace the old ones, bits already claimed stand. */
inline readmit(w, kind, round) {
  if
  :: kind == FRESH ->
#ifndef KEEP_LOST_GIVER
     lose_giver(w);
#endif
#ifdef REJOIN_CLEARS_BITS
     claimed[w] = 0;
#endif
     skip
  :: else
  fi;
  printf("box readmits worker %d.%d, open round %d\n", w, incarnation[w], round);
  if
  :: !member[w] -> member[w] = true; job_generation++
  :: else
  fi;
  admitted[w] = incarnation[w];
  joined[w] = kind;
  told_open[w] = round;
  told_to_give[w] = (copy_rank == w);
  phase[w] = JOINED
}

/* Over the ranks that resume: the highest round that one of them has consumed and still holds, and
 * the lowest that one needs. Both 0 if nobody resumes. */
#ifdef GIVE_UNHELD
#define can_give(w) (joined[w] == RESUMES)
#else
#define can_give(w) (joined[w] == RESUMES && holds[w])
#endif
#if WORKERS == 2
#define all_joined (joined[0] && joined[1])
#define some_resume (joined[0] == RESUMES || joined[1] == RESUMES)
#else
#define all_joined (joined[0] && joined[1] && joined[2])
#define some_resume (joined[0] == RESUMES || joined[1] == RESUMES || joined[2] == RESUMES)
#endif
inline compare_rounds() {
  most = 0;
  least = ROUNDS;
  rank = 0;
  do
  :: rank < WORKERS ->
     if
     :: joined[rank] == RESUMES && needed[rank] < least -> least = needed[rank]
     :: else
     fi;
     if
     :: can_give(rank) && needed[rank] > most -> most = needed[rank]
     :: else
     fi;
     rank++
  :: else -> break
  od;
  if
  :: !some_resume -> least = 0
  :: else
  fi
}

/* The highest that a rank knows of, and one more if somebody is left out. */
inline agree_generation() {
  job_generation = 0;
  rank = 0;
  do
  :: rank < WORKERS ->
     if
     :: member[rank] && generation[rank] > job_generation -> job_generation = generation[rank]
     :: else
     fi;
     rank++
  :: else -> break
  od;
  if
  :: members != EVERYBODY -> job_generation++
  :: else
  fi
}

/* The restarted box has heard who is there: a new epoch, and each chunk opens where it must. */
inline start_job() {
  compare_rounds();
#ifndef EPOCH_REUSED
  epoch++;
#endif
  clear_round();
#ifdef RESUM
  open = least;
#else
  open = (least < most -> most - 1 : least);
  assert(most <= least + 1);
#endif
  rank = 0;
  do
  :: rank < WORKERS ->
     member[rank] = (joined[rank] != NOT_JOINED);
     admitted[rank] = (member[rank] -> incarnation[rank] : NOBODY);
     told_open[rank] = open;
     told_to_give[rank] = false;
#ifndef RESUM
     if
     :: least < most ->
#ifndef COPY_AND_SUM
        claimed[rank] = ALL_FRAGMENTS;
#endif
        if
        :: can_give(rank) && needed[rank] == most -> givers = givers | (1 << rank)
        :: else
        fi
     :: else
     fi;
#endif
     rank++
  :: else -> break
  od;
  if
  :: givers != 0 -> choose_giver(); told_to_give[copy_rank] = true
  :: else
  fi;
  gathering = false;
  agree_generation();
  rank = 0;
  do
  :: rank < WORKERS -> doomed[rank] = !member[rank] && phase[rank] != STARTING; rank++
  :: else -> break
  od;
  check_agreement();
  printf("box starts epoch %d with members %d: open round %d, copy from %d\n", epoch, members,
         open, copy_rank)
}

/* The members have gone on without it: its state is not one to recover from. */
#ifdef RESUME_LEFT_BEHIND
#define ahead_of(v, w) (can_give(v) && needed[v] > needed[w] + 1)
#else
#define ahead_of(v, w) \
  ((can_give(v) && needed[v] > needed[w] + 1) || \
   (joined[v] == RESUMES && generation[v] > generation[w]))
#endif
#if WORKERS == 2
#define left_behind(w) (joined[w] == RESUMES && (ahead_of(0, w) || ahead_of(1, w)))
#define some_left_behind (left_behind(0) || left_behind(1))
#define EACH_WORKER(step) step(0) step(1)
#else
#define left_behind(w) \
  (joined[w] == RESUMES && (ahead_of(0, w) || ahead_of(1, w) || ahead_of(2, w)))
#define some_left_behind (left_behind(0) || left_behind(1) || left_behind(2))
#define EACH_WORKER(step) step(0) step(1) step(2)
#endif

/* JOIN or SESSION is lost with its connection. */
inline leave_gathering(w) {
  if
  :: phase[w] == JOINED ->
     phase[w] = (joined[w] == FRESH -> STARTING : SUSPENDED);
     joined[w] = NOT_JOINED;
     told_open[w] = 0;
     told_to_give[w] = false
  :: else
  fi
}

/* Rounds no longer wait for it; what it has contributed stands. */
inline exclude(w) {
  printf("box excludes worker %d\n", w);
  member[w] = false;
  job_generation++;
  admitted[w] = NOBODY;
#ifdef EXCLUSION_CLEARS_BITS
  claimed[w] = 0;
#endif
  lose_giver(w);
  leave_gathering(w);
  doomed[w] = (phase[w] != STARTING);
  if
#ifndef EXCLUSION_LEAVES_ROUND
  :: round_is_complete -> finish_round()
#endif
  :: else
  fi
}

#define EXCLUDE(w)                                                                                \
  :: d_step {                                                                                     \
       exclusions > 0 && !gathering && open < ROUNDS && member[w] && members != (1 << w) ->       \
       exclusions--;                                                                              \
       exclude(w)                                                                                 \
     }

proctype Control() {
end:
  do
  :: d_step { gathering && all_joined && !some_left_behind -> start_job() }
  :: d_step {
       exclusions > 0 && gathering && !all_joined && some_resume && !some_left_behind ->
       exclusions--;
       start_job()
     }
  EACH_WORKER(EXCLUDE)
  od
}
