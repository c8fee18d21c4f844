/* The faults, within the budgets of slot.pml. */

#define CRASH_WORKER(w)                                                                           \
  :: d_step {                                                                                     \
       worker_crashes > 0 && phase[w] <= JOINED && !all_finished ->                               \
       printf("worker %d crashes\n", w);                                                          \
       worker_crashes--;                                                                          \
       start_again(w)                                                                             \
     }

#define DISCONNECT(w)                                                                             \
  :: d_step {                                                                                     \
       disconnects > 0 && !all_finished && (phase[w] == RUNS || phase[w] == JOINED) ->            \
       disconnects--;                                                                             \
       if                                                                                         \
       :: phase[w] == RUNS -> suspend(w)                                                          \
       :: else -> leave_gathering(w)                                                              \
       fi                                                                                         \
     }

proctype Faults() {
end:
  do
  :: d_step {
       box_crashes > 0 && !all_finished ->
       printf("the box crashes\n");
       box_crashes--;
       job_generation = 0;
       gather()
     }
  EACH_WORKER(CRASH_WORKER)
  EACH_WORKER(DISCONNECT)
  /* All packets in flight are lost, and from now on there are no faults. */
  :: d_step {
       !faults_over && !all_finished ->
       printf("faults are over\n");
       faults_over = true;
       box_crashes = 0;
       worker_crashes = 0;
       disconnects = 0;
       exclusions = 0;
       at = 0;
       do
       :: at < EPOCHS * WORKERS -> pushes_sent[at] = 0; at++
       :: else -> break
       od;
       at = 0;
       do
       :: at < EPOCHS * ROUNDS * FRAGMENTS -> results_sent[at] = 0; result_generations[at] = 0; at++
       :: else -> break
       od;
       at = 0;
       do
       :: at < EPOCHS * WORKERS * FRAGMENTS -> copies_sent[at] = 0; at++
       :: else -> break
       od;
       at = 0
     }
  od
}
