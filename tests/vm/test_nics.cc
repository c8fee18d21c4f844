// A box with two NICs on one switch, in a guest of tests/vm, whose kernel would send everything by
// one of them. Workers are in a namespace of their own (rack_workers), with nic2.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr uint32_t kElements = 2'000'000;
constexpr int kRounds = 4;
constexpr uint32_t kTimeoutMs = 120'000;

double sent_bytes(const std::string& nic) {
  std::ifstream file("/sys/class/net/" + nic + "/statistics/tx_bytes");
  double bytes = 0;
  file >> bytes;
  return bytes;
}

}  // namespace

TEST_CASE("a box on two NICs of one network sends as much by one as by the other") {
  Daemon daemon({"--box.listen=0.0.0.0", "--pipeline.count=2", "--security.insecure=true",
                 "--security.insecure_off_loopback=true"});
  const std::string box = "10.9.0.1" + daemon.control().substr(daemon.control().rfind(':'));
  const double before[] = {sent_bytes("nic0"), sent_bytes("nic1")};
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back([&, rank](Line&) {
      enter_name_space("workers");
      AbiWorker worker({.box = box, .rank = rank, .world_size = kWorkers});
      std::vector<float> values(kElements);
      worker.tensor("t", values.size());
      worker.join();
      for (int round = 0; round < kRounds; ++round) {
        values.assign(values.size(), 1.5f);
        worker.push_pull(0, values.data(), values.data());
        worker.must(pbox_wait(worker.context(), 0, kTimeoutMs));
      }
      require(values.front() == 1.5f * kWorkers && values.back() == 1.5f * kWorkers, "wrong sums");
      worker.leave();
    });
  }
  for (auto& worker : workers) CHECK(worker.finish() == "");
  const double by_first = sent_bytes("nic0") - before[0];
  const double by_second = sent_bytes("nic1") - before[1];
  INFO("bytes sent by nic0: " << by_first << ", by nic1: " << by_second);
  CHECK(by_first + by_second > double{kRounds} * kWorkers * kElements * sizeof(float));
  CHECK(std::abs(by_first - by_second) <= 0.1 * std::min(by_first, by_second));
}

}  // namespace pbox::test
