/* The chunk at the box, pipeline/engine_receive.cc, and the job that owns it,
 * appliance/control/job_registry.cc. */

#if defined(NO_EPOCH_FENCE)
#define right_epoch(e) true
#else
#define right_epoch(e) ((e) == epoch)
#endif
#if defined(STALE_ROUND)
#define right_round(r) ((r) <= open)
#else
#define right_round(r) same_round(r, open)
#endif
#if defined(NO_CLAIM)
#define unclaimed(w, f) true
#else
#define unclaimed(w, f) (!(claimed[w] & (1 << (f))))
#endif

/* Whether a push passes every check: it is of the open round and of a valid session, and its bit is
 * free. */
#define box_adds(w, e, r, f) \
  (!gathering && open < ROUNDS && right_epoch(e) && right_round(r) && member[w] && \
   (pushes(e, w) & push_bit(r, f, admitted[w])) && unclaimed(w, f))

#if WORKERS == 2
#define whole(w) (!member[w] || claimed[w] == ALL_FRAGMENTS)
#define round_is_complete (whole(0) && whole(1))
#define members (member[0] + 2 * member[1])
#else
#define whole(w) (!member[w] || claimed[w] == ALL_FRAGMENTS)
#define round_is_complete (whole(0) && whole(1) && whole(2))
#define members (member[0] + 2 * member[1] + 4 * member[2])
#endif

inline add(w, r, f) {
  if
  :: sum[f] == 0 -> sum[f] = (w << ORDER_SHIFT) | ((admitted[w] + 1) << (3 * w))
  :: sum[f] != 0 && part(sum[f], w) == 0 -> sum[f] = sum[f] | ((admitted[w] + 1) << (3 * w))
  :: else -> sum[f] = sum[f] | TWICE
  fi;
  if
  :: r != open -> sum[f] = sum[f] | MIXED
  :: else
  fi
}

inline clear_round() {
  at = 0;
  do
  :: at < FRAGMENTS -> sum[at] = 0; at++
  :: else -> break
  od;
  at = 0;
  do
  :: at < WORKERS -> claimed[at] = 0; at++
  :: else -> break
  od;
  copy_rank = NOBODY
}

/* A result that was copied is sent as it was, with the contributors that it states. */
inline finish_round() {
  printf("box: round %d is complete\n", open);
  at = 0;
  do
  :: at < FRAGMENTS ->
     if
     :: copy_rank == NOBODY ->
#ifdef COUNT_MEMBERS
        sum[at] = sum[at] | (members << COUNTED_SHIFT)
#else
        sum[at] = sum[at] | (contributors(sum[at]) << COUNTED_SHIFT)
#endif
     :: else ->
#ifdef COPY_WITHOUT_COUNT
        sum[at] = (sum[at] & ((1 << COUNTED_SHIFT) - 1)) | (members << COUNTED_SHIFT)
#endif
        skip
     fi;
     /* an epoch completes a round once */
     assert(result(epoch, open, at) == 0 || result(epoch, open, at) == sum[at]);
     result(epoch, open, at) = sum[at];
     generations(epoch, open, at) = generations(epoch, open, at) | (1 << job_generation);
#ifndef NO_KEPT_RESULT
     kept[at] = sum[at];
#endif
     at++
  :: else -> break
  od;
  open++;
  clear_round()
}

#define ADD_PUSH(w, e, r, f)                                                                      \
  :: d_step {                                                                                     \
       box_adds(w, e, r, f) ->                                                                    \
       printf("box adds the push of worker %d.%d, round %d, fragment %d, epoch %d\n",             \
              w, admitted[w], r, f, e);                                                           \
       claimed[w] = claimed[w] | (1 << f);                                                        \
       add(w, r, f);                                                                              \
       if                                                                                         \
       :: round_is_complete -> finish_round()                                                     \
       :: else                                                                                    \
       fi                                                                                         \
     }

#define TAKE_COPY(w, e, r, f)                                                                     \
  :: d_step {                                                                                     \
       !gathering && (e) == epoch && (r) == open && copy_rank == w && copy(e, w, f) &&            \
       !(claimed[w] & (1 << f)) ->                                                                \
       printf("box takes the copy of round %d, fragment %d, of worker %d\n", r, f, w);            \
       claimed[w] = claimed[w] | (1 << f);                                                        \
       sum[f] = copy(e, w, f);                                                                    \
       if                                                                                         \
       :: round_is_complete -> finish_round()                                                     \
       :: else                                                                                    \
       fi                                                                                         \
     }

#ifdef COUNT_AT_SEND
#define as_sent(value) ((value & ((1 << COUNTED_SHIFT) - 1)) | (members << COUNTED_SHIFT))
#else
#define as_sent(value) (value)
#endif

/* Sends a result again for a PULL or for a duplicate of a finished round. It matters only after the
 * network has lost everything, or when the membership has changed. */
#define RESEND_RESULT(w, e, r, f)                                                                 \
  :: d_step {                                                                                     \
       !gathering && (e) == epoch && (r) + 1 == open && needed[w] == (r) && phase[w] == RUNS &&   \
       session_epoch[w] == epoch && member[w] && generation[w] == job_generation && kept[f] &&    \
       !(generations(e, r, f) & (1 << job_generation)) ->                                         \
       result(e, r, f) = as_sent(kept[f]);                                                        \
       generations(e, r, f) = generations(e, r, f) | (1 << job_generation)                        \
     }

/* Receives rank w's packets at the box, with the keys of one incarnation and on one queue. */
proctype Link(byte w) {
end:
  do
  EACH_PACKET(ADD_PUSH, w)
  EACH_PACKET(TAKE_COPY, w)
  EACH_PACKET(RESEND_RESULT, w)
  od
}
