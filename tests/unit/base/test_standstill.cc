#include <catch2/catch.hpp>
#include <thread>

#include "base/standstill.h"

namespace pbox::standstill_test {

TEST_CASE("a thread that had no turn has either worked or waited") {
  TurnClock clock;
  clock.next(monotonic_ns());
  const uint64_t begun_ns = monotonic_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const uint64_t woken_ns = monotonic_ns();
  const TurnClock::Turn waited = clock.next(woken_ns);
  CHECK(waited.gap_ns >= woken_ns - begun_ns);
  CHECK_FALSE(waited.was_busy);
  // Works until the thread has used the CPU for the given time, however long that takes. The clock
  // is told a gap that is not much longer.
  timespec used{};
  uint64_t spent_ns = 0;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  const auto before_ns =
      static_cast<uint64_t>(used.tv_sec) * kNanosPerSecond + static_cast<uint64_t>(used.tv_nsec);
  while (spent_ns < 20 * kNanosPerMilli) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    spent_ns = static_cast<uint64_t>(used.tv_sec) * kNanosPerSecond +
               static_cast<uint64_t>(used.tv_nsec) - before_ns;
  }
  CHECK(clock.next(woken_ns + 30 * kNanosPerMilli).was_busy);
}

}  // namespace pbox::standstill_test
