// The generator of a seed's draws, and draws that several kinds of racks share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "tests/sim/options.h"

namespace pbox::sim {

class Draw {
 public:
  explicit Draw(uint64_t seed) : rng_(seed * 0x2545f4914f6cdd1dull + 1) {}

  bool chance(double probability) { return rng_.unit() < probability; }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(rng_.below(bound)); }
  // Returns a number in [low, high].
  uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  uint64_t number() { return rng_.next(); }
  // Returns a number in [low, high], of any order of magnitude: `low` is doubled again and again,
  // each time with probability 3/4.
  uint64_t scaled(uint64_t low, uint64_t high) {
    uint64_t value = low;
    while (value * 2 <= high && chance(0.75)) value *= 2;
    return std::min(high, value + rng_.below(value + 1));
  }
  template <typename T, size_t count>
  T one_of(const T (&choices)[count]) {
    return choices[below(count)];
  }

 private:
  Rng rng_;
};

// Draws tensors with at most this many chunks together.
void draw_tensors(Draw& draw, uint32_t chunks_left, JobOptions& job);
// Draws an optimizer. The job must then not lose ranks, because the oracle cannot know how many
// were in each step.
void draw_optimizer(Draw& draw, JobOptions& job);
// Draws the calls of a job of collectives, the same for all ranks.
void draw_calls(Draw& draw, JobOptions& job);
// Draws the bursts and the timing of all hosts.
void draw_hosts(Draw& draw, Options& options);
// Draws the faults that each packet may have.
PacketFaults draw_packet_faults(Draw& draw);
// Draws how long an episode of this kind lasts.
uint64_t draw_length(Draw& draw, EpisodeKind kind);
// Returns the approximate duration of the jobs without faults.
uint64_t work_ns(const Options& options);
// Draws when an episode begins: mostly while jobs run, after the time that they need to join.
uint64_t draw_begin(Draw& draw, const Options& options);

// Each of the following functions has a generator of its own, so that the other draws of the rack
// do not depend on it. The first ones are each defined in options_<subject>.cc.

// Turns some jobs into jobs of collectives. In some of these the calls of one rank differ from
// those of the others.
void draw_collectives(uint64_t seed, Options& options);

// Makes some jobs elastic in some seeds.
void draw_elastic(uint64_t seed, Options& options);

// Makes some of the jobs whose sums are checked push zeros. A fragment that is zero does not show
// which ranks are in it, so no rank of these jobs may be left out.
void draw_zeros(uint64_t seed, Options& options);

// Gives weights to the pushes of some jobs whose sums are checked, also to jobs of model `drop`.
void draw_weights(uint64_t seed, Options& options);

// Compresses some tensors of jobs that have an oracle for it, and makes more jobs use SGD, the
// optimizer with such an oracle.
void draw_compression(uint64_t seed, Options& options);

// Lets a new process take a rank's place while a round ends, in half of the jobs of mode optimize
// and bsp that wait for lost ranks.
void draw_takeovers(uint64_t seed, Options& options);

// Makes boxes take snapshots of jobs in mode optimize, in some seeds. There such jobs last longer,
// and more boxes are lost.
void draw_snapshots(uint64_t seed, Options& options);

// Moves chunks between the pipelines of a box (options_moves.cc), in some seeds.
void draw_chunk_moves(uint64_t seed, Options& options);

// Makes the cables of some workers bottlenecks, in one seed in twenty.
void draw_cables(uint64_t seed, Options& options);

// The following functions are defined in options_cluster.cc or options_sync.cc.

// Draws more boxes, and jobs that move between them while the boxes' views of the map differ.
void draw_moves(uint64_t seed, Options& options);
// Draws models of tensors, and changes of models, for relaxed jobs.
void draw_tensor_models(uint64_t seed, Options& options);
// Draws how long rounds of model `drop` wait for more ranks than their quorum.
void draw_graces(uint64_t seed, Options& options);
// Draws more lost, late and old results for jobs of model `drop`, because otherwise that model's
// rules for them are seldom used.
void draw_lapses(uint64_t seed, Options& options);
// Tells each part whether a tensor in any part of its job is relaxed. Called after draw_parts().
void note_relaxed_parts(Options& options);
// Limits the room of boxes, in some seeds, to about as much as one or two jobs need, or less.
void draw_room(uint64_t seed, Options& options);
// Divides jobs of a cluster into parts. Each part has tensors of its own, and hosts of its own for
// its ranks. In some racks one box has several parts of a job, whose results wait for its slow
// link.
void draw_parts(uint64_t seed, Options& options);

}  // namespace pbox::sim
