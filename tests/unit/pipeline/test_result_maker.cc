// Packets of results that are made in one go.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <span>

#include "pipeline/result_maker.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

constexpr uint32_t kRank = 1;

// A job of one chunk of seven fragments, the last of which is shorter.
struct Job {
  explicit Job(bool is_partial = false) {
    JobOptions options;
    options.chunks = 1;
    options.chunk_elements = 6 * options.fragment_bytes / sizeof(float) + 5;
    auto spec = spec_of(options);
    spec.partial = is_partial;
    auto made = pipeline::JobShard::create(spec);
    REQUIRE(made.ok());
    shard = std::move(*made);
  }
  pipeline::ResultMaker maker(const wire::TagPolicy& tag = kPlain) {
    return {*shard, shard->sessions()[kRank], shard->chunks()[0], 3, false, tag};
  }
  uint64_t next_number() const { return shard->sessions()[kRank].seal.next_number(); }

  static constexpr wire::TagPolicy kPlain{};
  std::unique_ptr<pipeline::JobShard> shard;
};

void check_same(const nic::TxPacket& a, const nic::TxPacket& b) {
  CHECK(std::memcmp(&a.header, &b.header, sizeof(a.header)) == 0);
  CHECK(a.tag == b.tag);
}

}  // namespace

TEST_CASE("packets that are made in a run are those that are made one by one") {
  Job one_by_one, run;
  const uint32_t fragments = one_by_one.maker().fragment_count();
  REQUIRE(fragments == 7);
  for (uint32_t first = 0; first < fragments; ++first) {
    const uint32_t length = run.maker().run_length(first);
    CHECK(length == fragments - first);
    std::array<nic::TxPacket, 7> expected, packets;
    uint64_t bytes = 0;
    for (uint32_t index = 0; index < length; ++index) {
      one_by_one.maker().make(first + index, 0, nullptr, expected[index]);
      bytes += expected[index].header.payload_bytes;
    }
    // In two runs, the first of which has no last fragment.
    const uint32_t half = length / 2;
    uint64_t run_bytes = 0;
    if (half > 0) run_bytes = run.maker().make_run(first, std::span(packets).first(half));
    run_bytes +=
        run.maker().make_run(first + half, std::span(packets).subspan(half, length - half));
    CHECK(run_bytes == bytes);
    const std::byte* const result = run.shard->chunks()[0].result[3 & 1];
    for (uint32_t index = 0; index < length; ++index) {
      check_same(packets[index], expected[index]);
      CHECK(packets[index].payload == result + size_t{first + index} * run.shard->fragment_bytes);
      CHECK(packets[index].to == &run.shard->sessions()[kRank].endpoint);
      CHECK(packets[index].from == &run.shard->sessions()[kRank].local_address);
    }
    CHECK(run.next_number() == one_by_one.next_number());
  }
}

TEST_CASE("fragments that differ in more than their place are made one by one") {
  constexpr wire::TagPolicy kWithPayload{.payload_crc = true};
  CHECK(Job().maker(kWithPayload).run_length(0) == 0);
  CHECK(Job(true).maker().run_length(0) == 0);
}

}  // namespace pbox::test
