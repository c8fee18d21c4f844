// Gradients that are half zero, over a real box and libpbox.so.
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>

#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint64_t kElements = 100'000;
constexpr uint32_t kWorkers = 3;

// The bits of 1.0. Sums of up to 3 of them are exact in all three types.
constexpr uint32_t kOneF32 = 0x3f800000;
constexpr uint16_t kOneF16 = 0x3c00, kOneBf16 = 0x3f80;
constexpr uint32_t kThreeF32 = 0x40400000;
constexpr uint16_t kThreeF16 = 0x4200, kThreeBf16 = 0x4040;

struct Bits {
  pbox_dtype dtype;
  uint32_t bytes, one, three;
};
constexpr Bits kBits[] = {{PBOX_F32, 4, kOneF32, kThreeF32},
                          {PBOX_F16, 2, kOneF16, kThreeF16},
                          {PBOX_BF16, 2, kOneBf16, kThreeBf16}};

void set(std::vector<std::byte>& tensor, const Bits& bits, uint64_t first, uint64_t end,
         uint32_t value) {
  for (uint64_t at = first; at < end; ++at) {
    std::memcpy(tensor.data() + at * bits.bytes, &value, bits.bytes);
  }
}

// Pushes tensors of each type whose first or second half is ones.
void run_rank(const std::string& box, uint32_t rank, uint32_t rounds, Line& line,
              const Progress& progress) {
  const AbiWorker worker({.box = box, .rank = rank, .world_size = kWorkers});
  for (const Bits& bits : kBits) {
    worker.tensor("t" + std::to_string(bits.dtype), kElements, bits.dtype);
  }
  worker.join();
  line.say("joined");
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t begin = round % 2 == 0 ? 0 : kElements / 2, end = begin + kElements / 2;
    std::vector<std::vector<std::byte>> tensors, expected;
    for (uint32_t tensor = 0; tensor < std::size(kBits); ++tensor) {
      const Bits& bits = kBits[tensor];
      tensors.emplace_back(kElements * bits.bytes);
      expected.emplace_back(kElements * bits.bytes);
      set(tensors[tensor], bits, begin, end, bits.one);
      set(expected[tensor], bits, begin, end, bits.three);
      worker.push_pull(tensor, tensors[tensor].data(), tensors[tensor].data());
    }
    worker.wait_all();
    require(tensors == expected, "round " + std::to_string(round) + ": not the sum");
    progress.advance(rank);
  }
  const pbox_statistics statistics = worker.statistics();
  line.say(std::to_string(statistics.bytes_pushed) + " " + std::to_string(statistics.bytes_pulled) +
           " " + std::to_string(statistics.zero_fragments) + " " +
           std::to_string(statistics.fragment_bytes));
  worker.leave();
}

std::vector<WorkerProcess> start(const std::string& box, uint32_t rounds,
                                 const Progress& progress) {
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    ranks.emplace_back([&box, rank, rounds, &progress](Line& line) {
      run_rank(box, rank, rounds, line, progress);
    });
  }
  for (WorkerProcess& rank : ranks) REQUIRE(rank.heard().value_or("nothing") == "joined");
  return ranks;
}

}  // namespace

TEST_CASE("half of the bytes of tensors that are half zero are sent, both ways") {
  constexpr uint32_t kRounds = 10;
  const Daemon daemon;
  const std::string& box = daemon.control();
  const Progress progress(kWorkers);
  auto ranks = start(box, kRounds, progress);
  const double bytes = kRounds * kElements * (4.0 + 2 + 2);
  uint64_t not_sent = 0;
  for (WorkerProcess& rank : ranks) {
    const std::string said = rank.heard().value_or("nothing");
    INFO(said);
    double pushed = 0, pulled = 0;
    unsigned long long fragments = 0, fragment_bytes = 0;
    REQUIRE(sscanf(said.c_str(), "%lf %lf %llu %llu", &pushed, &pulled, &fragments,
                   &fragment_bytes) == 4);
    CHECK(fragments > 0);
    // A fragment on the border of a half is sent whole, and a chunk may end within a half.
    const double most = bytes / 2 + static_cast<double>(kRounds * 3 * 3 * fragment_bytes);
    CHECK(pushed >= bytes / 2);
    CHECK(pushed < most);
    CHECK(pulled >= bytes / 2);
    not_sent += fragments;
    CHECK(rank.finish() == "");
  }
  CHECK(daemon.metric("pbox_zero_fragments_total") == not_sent);
  CHECK(daemon.metric("pbox_zero_result_fragments_total") >= not_sent);
}

TEST_CASE("tensors that are half zero survive the loss of their box") {
  MortalBox box;
  const std::string address = box.daemon().control();
  const Progress progress(kWorkers);
  auto ranks = start(address, 60, progress);
  for (const uint64_t round : {10, 25, 40}) {
    progress.await(round);
    box.kill();
    box.start_again();
  }
  for (WorkerProcess& rank : ranks) {
    REQUIRE(rank.heard().has_value());
    CHECK(rank.finish() == "");
  }
  CHECK(box.daemon().metric("pbox_zero_fragments_total") > 0);
}

}  // namespace pbox::test
