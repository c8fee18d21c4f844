// A box's pipeline and its load at the two ends of one wire. They take turns on one thread, and
// only the box's turns are timed. So neither waits for the other, and other work on the machine
// disturbs both sides of a comparison equally. Cycles are those of the time stamp counter.
#pragma once

#include <stdexcept>

#include "perf/wire/load.h"
#include "pipeline/loop.h"

namespace pbox::perf {

struct WireTurn {
  uint64_t cycles = 0;     // cycles of the box's turns that had work
  uint64_t fragments = 0;  // fragments added in these turns; as many are sent
  double cycles_per_fragment() const {
    return static_cast<double>(cycles) / static_cast<double>(fragments);
  }
};

template <nic::Port P>
class WireBench {
 public:
  WireBench(P& box_port, P& load_port, const nic::Endpoint& box, WireJob& job)
      : job_(job),
        engine_({.pipeline_index = 0, .tag = {}}),
        loop_(engine_, box_port, mailbox_, {.busy = true}),
        load_(load_port, std::vector<nic::Endpoint>(job.shape().workers, box), job) {
    engine_.execute({.kind = pipeline::CommandKind::kInstall, .shard = &job_.shard()});
  }
  ~WireBench() {
    engine_.execute({.kind = pipeline::CommandKind::kRemove, .shard = &job_.shard()});
  }
  WireBench(const WireBench&) = delete;
  WireBench& operator=(const WireBench&) = delete;

  // Runs until packets arrive, so that neighbours are resolved and links are up. Throws if no
  // packet arrives within 5 s.
  void connect() {
    const uint64_t end_ns = monotonic_ns() + 5 * kNanosPerSecond;
    for (uint64_t now_ns = monotonic_ns(); fragments() == 0; now_ns = monotonic_ns()) {
      if (now_ns > end_ns) throw std::runtime_error("no packet reached the box within 5 s");
      load_.turn(now_ns);
      loop_.turn(now_ns);
    }
  }

  // Runs for about `duration_ns`. Requires connect().
  WireTurn run(uint64_t duration_ns) {
    WireTurn turn;
    const uint64_t before = fragments();
    load_.resume(monotonic_ns());
    const uint64_t end_ns = monotonic_ns() + duration_ns;
    for (uint64_t now_ns = monotonic_ns(); now_ns < end_ns; now_ns = monotonic_ns()) {
      load_.turn(now_ns);
      const uint64_t start = pipeline::cycle_count();
      const bool worked = loop_.turn(now_ns);
      if (worked) turn.cycles += pipeline::cycle_count() - start;
    }
    turn.fragments = fragments() - before;
    return turn;
  }

  const pipeline::Counters& counters() const { return engine_.counters(); }
  uint64_t stalls() const { return load_.stalls(); }

 private:
  uint64_t fragments() const { return engine_.counters().get(pipeline::Counter::kAggregated); }

  WireJob& job_;
  pipeline::Engine engine_;
  pipeline::Mailbox mailbox_;
  pipeline::Loop<P> loop_;
  WireLoad<P> load_;
};

}  // namespace pbox::perf
