// A box's pipeline and its load at the two ends of one wire, on one thread in turns: only the box's
// turns are timed, so nothing waits for anybody and other work on the machine disturbs both sides
// of a comparison alike. Cycles are those of the time stamp counter.
#pragma once

#include <stdexcept>

#include "perf/wire/load.h"
#include "pipeline/loop.h"

namespace pbox::perf {

struct WireTurn {
  uint64_t cycles = 0;     // cycles of the box's turns that had work
  uint64_t fragments = 0;  // added in them, and as many sent
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

  // Until packets arrive: neighbours are found, links come up. Throws if they do not.
  void connect() {
    const uint64_t end_ns = monotonic_ns() + 5 * kNanosPerSecond;
    for (uint64_t now_ns = monotonic_ns(); fragments() == 0; now_ns = monotonic_ns()) {
      if (now_ns > end_ns) throw std::runtime_error("no packet reaches the box");
      load_.turn(now_ns);
      loop_.turn(now_ns);
    }
  }

  // For about so long, once connected.
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
