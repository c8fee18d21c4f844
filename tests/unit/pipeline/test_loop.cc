#include <catch2/catch.hpp>

#include "pipeline/loop.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

// Takes every packet and can send none.
class RefusingPort {
 public:
  size_t rx_burst(std::span<nic::RxPacket> /*packets*/) { return 0; }
  size_t tx_burst(std::span<const nic::TxPacket> packets) {
    send_failures_ += packets.size();
    return packets.size();
  }
  int event_fd() const { return -1; }
  nic::Capabilities capabilities() const { return {}; }
  uint64_t send_failures() const { return send_failures_; }

 private:
  uint64_t send_failures_ = 0;
};

}  // namespace

TEST_CASE("what the port could not send is a counter of the pipeline") {
  Box box;
  const JobOptions options;
  box.admit(options);
  RefusingPort port;
  pipeline::Mailbox mailbox;
  pipeline::Loop<RefusingPort> loop(box.core, port, mailbox, {});
  const auto failures = [&] { return box.core.counters().get(pipeline::Counter::kSendFailures); };
  loop.turn(1);  // grants of the job just admitted, if there are any
  const uint64_t before = failures();
  for (uint64_t count = 1; count <= 3; ++count) {
    box.deliver(box.pull(options, 0, 0));
    loop.turn(count + 1);
    CHECK(failures() == before + count);
  }
}

}  // namespace pbox::test
