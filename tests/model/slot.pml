/* The life of one chunk: its slots at the box, its workers, and what recovers it. README.md says
 * which product code each part models. `check` has the mistakes that can be compiled in with -D.
 *
 * The network is the set of all packets that were ever sent. Each may be delivered at any later
 * time, any number of times, or never: loss, duplication, reordering and delay without bound. So
 * a sender sends as soon as it may. If it sent later, the packet would only be delivered later.
 * A delivery that the receiver's checks would drop changes nothing and is therefore no transition.
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef FRAGMENTS
#define FRAGMENTS 1
#endif
#ifndef BOX_CRASHES
#define BOX_CRASHES 0
#endif
#ifndef WORKER_CRASHES
#define WORKER_CRASHES 0
#endif
#ifndef DISCONNECTS
#define DISCONNECTS 0 /* a control connection ends while both of its ends live */
#endif
#ifndef EXCLUSIONS
#define EXCLUSIONS 0 /* partial membership: how often a rank is excluded */
#endif

#ifdef PARITY
#define same_round(r, expected) (((r) & 1) == ((expected) & 1))
#else
#define same_round(r, expected) ((r) == (expected))
#endif

#ifdef RESULT_OF_ANY_GENERATION
#define right_generation(w, e, r, f) true
#else
#define right_generation(w, e, r, f) (generations(e, r, f) & (1 << generation[w]))
#endif

#ifndef INCARNATIONS
#define INCARNATIONS 4 /* for each rank, at most 7; an assertion fails if they are too few */
#endif

/* A job gathers when its box was lost, and again when the rank that gives a copy is lost too. */
#if BOX_CRASHES > 0
#define EPOCHS (1 + BOX_CRASHES + WORKER_CRASHES + EXCLUSIONS)
#else
#define EPOCHS 1
#endif
#define ALL_FRAGMENTS ((1 << FRAGMENTS) - 1)
#define NOBODY 7

/* Larger configurations would lack some of their packets: see EACH_PACKET and push_bit. */
#if WORKERS < 2 || WORKERS > 3 || ROUNDS < 2 || ROUNDS > 3 || FRAGMENTS > 2 || EPOCHS > 5 || \
    ROUNDS * FRAGMENTS * INCARNATIONS > 31
#error "no such configuration"
#endif

/* A sum that states exactly what went into it. Three bits per worker hold 1 + the incarnation that
 * contributed. ORDER is the worker that came first, because floating-point sums depend on the
 * order. With two workers they do not; ORDER then stands for the orders that more workers have.
 * COUNTED holds the contributors that the box states. TWICE and MIXED must never be set. */
#define part(value, w) ((value >> (3 * (w))) & 7)
#define ORDER_SHIFT 9
#define TWICE (1 << 11)
#define MIXED (1 << 12)
#define COUNTED_SHIFT 15
#define counted(value) ((value) >> COUNTED_SHIFT)
#if WORKERS == 2
#define contributors(value) ((part(value, 0) > 0) + 2 * (part(value, 1) > 0))
#else
#define contributors(value) \
  ((part(value, 0) > 0) + 2 * (part(value, 1) > 0) + 4 * (part(value, 2) > 0))
#endif
#define EVERYBODY ((1 << WORKERS) - 1)

/* --- the network: what was sent ------------------------------------------------------------- */
#define push_bit(r, f, i) (1 << (((r) * FRAGMENTS + (f)) * INCARNATIONS + (i)))
#define pushes(e, w) pushes_sent[(e) * WORKERS + (w)]
#define result(e, r, f) results_sent[((e) * ROUNDS + (r)) * FRAGMENTS + (f)]
#define generations(e, r, f) result_generations[((e) * ROUNDS + (r)) * FRAGMENTS + (f)]
#define copy(e, w, f) copies_sent[((e) * WORKERS + (w)) * FRAGMENTS + (f)]
int pushes_sent[EPOCHS * WORKERS];
int results_sent[EPOCHS * ROUNDS * FRAGMENTS];
byte result_generations[EPOCHS * ROUNDS * FRAGMENTS]; /* those that the packets name, as bits */
int copies_sent[EPOCHS * WORKERS * FRAGMENTS];

/* --- workers -------------------------------------------------------------------------------- */
#define RUNS 0      /* has a session and takes packets of it */
#define SUSPENDED 1 /* lost its session; takes nothing until it has the next one */
#define JOINED 2    /* has sent its state, and waits for SESSION */
#define STARTING 3  /* a fresh incarnation that has not joined yet */
#define GONE 4      /* excluded, and not started again */
byte phase[WORKERS];
byte session_epoch[WORKERS];
byte incarnation[WORKERS];
byte needed[WORKERS]; /* the round whose result it needs next; below it everything is consumed */
bool holds[WORKERS];  /* its shadow is the whole result of round needed - 1 */
byte staged[WORKERS]; /* fragments of the result of round needed that its shadow has */
int shadow[WORKERS * FRAGMENTS];
byte generation[WORKERS]; /* the newest membership that it knows of */
byte absent[WORKERS];     /* ranks that this membership leaves out, as bits */

/* --- control connections: what SESSION will say to a worker that has joined ----------------- */
#define NOT_JOINED 0
#define FRESH 1
#define RESUMES 2
byte joined[WORKERS];
byte told_open[WORKERS];
bool told_to_give[WORKERS];

/* --- the box -------------------------------------------------------------------------------- */
bool gathering; /* the box has restarted, and the job does not run yet */
byte epoch;     /* the only durable state */
byte open;      /* the open round; the result of the one before is kept */
byte claimed[WORKERS];
int sum[FRAGMENTS];
int kept[FRAGMENTS]; /* 0 if there is none, because the chunk was recovered at this round */
byte copy_rank = NOBODY;
byte member[WORKERS] = 1;
byte admitted[WORKERS]; /* the incarnation whose keys are valid */
byte job_generation;    /* of the membership; one more for each change */

/* --- the faults' budgets that are left, and what must hold ------------------------------------ */
byte box_crashes = BOX_CRASHES;
byte worker_crashes = WORKER_CRASHES;
byte disconnects = DISCONNECTS;
byte exclusions = EXCLUSIONS;
bool faults_over;
/* The results that each incarnation has consumed. The weights of a worker that crashed are gone,
 * and a worker that was excluded can only start again (`doomed`). Results that only these have
 * consumed bind no rank. */
int histories[WORKERS * ROUNDS * FRAGMENTS];
#define history(w, fragment) histories[(w) * ROUNDS * FRAGMENTS + (fragment)]
bool doomed[WORKERS];

hidden byte at, rank, other, least, most; /* scratch variables within one step */

#define finished(w) (phase[w] == GONE || (phase[w] == RUNS && needed[w] == ROUNDS))
#if WORKERS == 2
#define all_finished (finished(0) && finished(1))
#else
#define all_finished (finished(0) && finished(1) && finished(2))
#endif

/* One alternative of a do-loop for each packet that can exist. */
#if FRAGMENTS == 1
#define EACH_FRAGMENT(step, w, e, r) step(w, e, r, 0)
#else
#define EACH_FRAGMENT(step, w, e, r) step(w, e, r, 0) step(w, e, r, 1)
#endif
#if ROUNDS == 2
#define EACH_ROUND(step, w, e) EACH_FRAGMENT(step, w, e, 0) EACH_FRAGMENT(step, w, e, 1)
#else
#define EACH_ROUND(step, w, e) \
  EACH_FRAGMENT(step, w, e, 0) EACH_FRAGMENT(step, w, e, 1) EACH_FRAGMENT(step, w, e, 2)
#endif
#if EPOCHS == 1
#define EACH_PACKET(step, w) EACH_ROUND(step, w, 0)
#elif EPOCHS == 2
#define EACH_PACKET(step, w) EACH_ROUND(step, w, 0) EACH_ROUND(step, w, 1)
#elif EPOCHS == 3
#define EACH_PACKET(step, w) \
  EACH_ROUND(step, w, 0) EACH_ROUND(step, w, 1) EACH_ROUND(step, w, 2)
#elif EPOCHS == 4
#define EACH_PACKET(step, w) \
  EACH_ROUND(step, w, 0) EACH_ROUND(step, w, 1) EACH_ROUND(step, w, 2) EACH_ROUND(step, w, 3)
#else
#define EACH_PACKET(step, w) EACH_ROUND(step, w, 0) EACH_ROUND(step, w, 1) \
  EACH_ROUND(step, w, 2) EACH_ROUND(step, w, 3) EACH_ROUND(step, w, 4)
#endif

/* Checks that all workers that consumed a round saw the identical result, with the identical
 * contributors. */
inline check_agreement() {
  rank = 0;
  do
  :: rank < WORKERS ->
     other = 0;
     do
     :: other < rank ->
        at = 0;
        do
        :: at < ROUNDS * FRAGMENTS ->
           assert(doomed[rank] || doomed[other] || history(rank, at) == 0 ||
                  history(other, at) == 0 || history(rank, at) == history(other, at));
           at++
        :: else -> break
        od;
        other++
     :: else -> break
     od;
     rank++
  :: else -> break
  od;
  at = 0;
  rank = 0;
  other = 0
}

#include "box.pml"
#include "job.pml"
#include "worker.pml"
#include "faults.pml"

init {
  atomic {
    rank = 0;
    do
    :: rank < WORKERS ->
       send_pushes(rank, 0);
       run Worker(rank);
       run Link(rank);
       rank++
    :: else -> break
    od;
    rank = 0;
    run Control();
    run Faults()
  };
  all_finished /* the only valid end */
}
