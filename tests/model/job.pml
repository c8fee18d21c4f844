/* The control plane of the job in a restart, a rejoin and an exclusion: appliance/control/. */

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

/* The box has lost the job's rounds, and the job gathers. */
inline gather() {
  gathering = true;
  open = 0;
  clear_round();
  at = 0;
  do
  :: at < FRAGMENTS -> kept[at] = 0; at++
  :: else -> break
  od;
  rank = 0;
  do
  :: rank < WORKERS -> member[rank] = true; admitted[rank] = 0; leave_gathering(rank); rank++
  :: else -> break
  od;
  at = 0
}

inline admit(w, kind, round) {
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

/* Handles a rank's JOIN while the job runs. New keys replace the old ones, and bits already claimed
 * stand. If a new process takes the place of the rank that was to give a copy, the job gathers
 * again, so that all ranks report their rounds anew. */
inline readmit(w, kind, round) {
#ifdef REJOIN_CLEARS_BITS
  claimed[w] = 0;
#endif
  if
#ifndef KEEP_LOST_GIVER
  :: kind == FRESH && copy_rank == w ->
     printf("box gathers again: the copy is lost\n");
     gather();
     joined[w] = FRESH;
     phase[w] = JOINED
#endif
  :: else -> admit(w, kind, round)
  fi
}

/* Compares the ranks that resume. `most` is the highest `needed` of a rank that still holds the
 * result of the round before it, and `least` the lowest `needed`. Both are 0 if no rank resumes. */
#ifdef GIVE_UNHELD
#define can_give(w) (joined[w] == RESUMES)
#else
#define can_give(w) (joined[w] == RESUMES && holds[w])
#endif
#if WORKERS == 2
#define some_joined (joined[0] || joined[1])
#define some_resume (joined[0] == RESUMES || joined[1] == RESUMES)
#else
#define some_joined (joined[0] || joined[1] || joined[2])
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

/* The generation becomes the highest that a member knows of, plus 1 if a rank is left out. */
inline agree_generation() {
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

/* Called when the restarted box knows which ranks are there. It takes a new epoch, and opens the
 * chunk at the round from which these ranks can continue. */
inline start_job() {
  compare_rounds();
#ifndef EPOCH_REUSED
  epoch++;
  assert(epoch < EPOCHS); /* the model's own bound */
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
        :: can_give(rank) && needed[rank] == most && copy_rank == NOBODY -> copy_rank = rank
        :: else
        fi
     :: else
     fi;
#endif
     rank++
  :: else -> break
  od;
  if
  :: copy_rank != NOBODY -> told_to_give[copy_rank] = true; claimed[copy_rank] = 0
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

/* `some` and `any_rank` are equal. Both exist because a macro does not expand within itself. */
#if WORKERS == 2
#define some(what, w) (what(0, w) || what(1, w))
#define any_rank(what, w) (what(0, w) || what(1, w))
#define any(what) (what(0) || what(1))
#define EACH_WORKER(step) step(0) step(1)
#else
#define some(what, w) (what(0, w) || what(1, w) || what(2, w))
#define any_rank(what, w) (what(0, w) || what(1, w) || what(2, w))
#define any(what) (what(0) || what(1) || what(2))
#define EACH_WORKER(step) step(0) step(1) step(2)
#endif
/* Whether the newest of the ranks that resume knows that the job has continued without rank w.
 * Generations are in order only together with the epoch, which is durable: a restarted box counts
 * them from what the present ranks know. */
#ifdef GENERATION_ALONE
#define age(w) generation[w]
#else
#define age(w) (8 * session_epoch[w] + generation[w])
#endif
#define newer(u, v) (joined[u] == RESUMES && age(u) > age(v))
#define outlived(v, w) (joined[v] == RESUMES && (absent[v] & (1 << (w))) && !some(newer, v))
#define refused(v, w) (outlived(v, w) && age(v) > age(w))
#ifdef RESUME_LEFT_BEHIND
#define left_behind(w) false
#else
#define left_behind(w) (joined[w] == RESUMES && any_rank(refused, w))
#endif
/* Whether a round must open again for which rank w has no gradient because w began after it, while
 * no rank has that round's result. */
#define behind(v, w) (joined[v] == RESUMES && needed[v] < needed[w])
#define gives(v, w) (can_give(v) && needed[v] == needed[w])
#define beyond(w) (joined[w] == RESUMES && some(behind, w) && !some(gives, w))
#define awaited(w) (!joined[w] && !any_rank(outlived, w))
#define may_start (!any(left_behind) && !any(beyond))

/* Rounds no longer wait for rank w, and its contributions stand. But if it was to give a copy, the
 * job gathers again, and all ranks that are there, w included, report their rounds anew. */
inline exclude(w) {
  printf("box excludes worker %d\n", w);
  if
  :: copy_rank == w -> gather()
  :: else ->
     member[w] = false;
     job_generation++;
     admitted[w] = NOBODY;
     leave_gathering(w);
     doomed[w] = (phase[w] != STARTING);
#ifdef EXCLUSION_CLEARS_BITS
     claimed[w] = 0;
#endif
     if
#ifndef EXCLUSION_LEAVES_ROUND
     :: round_is_complete -> finish_round()
#endif
     :: else
     fi
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
  :: d_step { gathering && !any(awaited) && some_joined && may_start -> start_job() }
  :: d_step {
       exclusions > 0 && gathering && any(awaited) && some_resume && may_start ->
       exclusions--;
       start_job()
     }
  EACH_WORKER(EXCLUDE)
  od
}
