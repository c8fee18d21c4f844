// Draws cables: bottlenecks between workers and boxes whose queues drop what does not fit.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/network.h"

namespace pbox::sim {
namespace {

// Each frame of a TCP flow is an event, so the flow must be short and its cable slow.
constexpr uint64_t kTcpRateMost = 100'000'000, kTcpLongestNs = 500 * kNanosPerMilli;

constexpr uint64_t kQueueLeast = 32 << 10;  // a queue as short as this becomes full

Cable draw_cable(Draw& draw, uint32_t host) {
  Cable cable{.host = host};
  cable.bytes_per_second = draw.scaled(20'000'000, 1'000'000'000);
  cable.delay_ns = draw.below(2 * kNanosPerMilli + 1);
  cable.queue_bytes = draw.chance(0.5) ? kQueueLeast : draw.scaled(kQueueLeast, 256 << 10);
  return cable;
}

}  // namespace

// A quiet rack drops nothing, so it has no cables.
void draw_cables(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x6361626c655f6671ull);
  if (!draw.chance(0.05) || options.faults_end_ns == 0) return;
  const bool may_have_tcp = options.faults_end_ns <= kTcpLongestNs;
  for (uint32_t host = options.boxes; host < outsider_of(options); ++host) {
    if (!draw.chance(0.6)) continue;
    Cable cable = draw_cable(draw, host);
    if (may_have_tcp && draw.chance(0.6)) {
      cable.bytes_per_second = std::min(cable.bytes_per_second, kTcpRateMost);
      cable.tcp_to_box = draw.chance(0.6);
      cable.tcp_from_box = !cable.tcp_to_box || draw.chance(0.3);
    }
    options.cables.push_back(cable);
  }
}

}  // namespace pbox::sim
