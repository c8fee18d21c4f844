// Rounds of slots, in jobs of collectives: a packet that does not count leaves no trace.
#include <catch2/catch.hpp>

#include "nic/wire/collective.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_slots_test {

using pipeline::Counter;

namespace {

// Slots of 3072 bytes, in 3 fragments.
const JobOptions kJob{
    .workers = 2, .chunk_elements = 3072, .dtype = wire::Dtype::kU8, .is_collective = true};
constexpr wire::RoundShape kShape{.digest = 77,
                                  .dtype = wire::Dtype::kU8,
                                  .combine = wire::Combine::kSum,
                                  .audience = wire::Audience::kAll,
                                  .fragment_count = 2};

// Returns a push of the first round. Without payload the rank has no data for it.
Packet push(Box& box, uint32_t rank, uint32_t fragment, const wire::RoundShape& shape,
            uint32_t payload_bytes) {
  Packet packet = box.pull(kJob, rank, 0);
  packet.header.set_type(wire::PacketType::kPush);
  packet.header.fragment = static_cast<uint16_t>(fragment);
  packet.payload.assign(payload_bytes, std::byte{1});
  packet.header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  wire::write_shape(shape, payload_bytes == 0, packet.header);
  return packet;
}

}  // namespace

TEST_CASE("a push that is refused as a duplicate does not say how long a slot's result is") {
  Box box;
  const auto& shard = box.admit(kJob);
  box.deliver(push(box, 0, 1, kShape, 0));  // rank 0 has no data
  box.deliver(push(box, 0, 1, kShape, 100));
  CHECK(box.count(Counter::kDuplicate) == 1);
  // Rank 1's last fragment is longer. It is the first one that counts.
  box.deliver(push(box, 1, 0, kShape, 1024));
  box.deliver(push(box, 1, 1, kShape, 500));
  CHECK(box.count(Counter::kRejectLength) == 0);
  CHECK_FALSE(shard.mismatch());
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 4);  // two fragments for each rank
  for (const Sent& result : sent) {
    CHECK(result.header.type() == wire::PacketType::kResult);
    CHECK(result.payload.size() == (result.header.fragment == 0 ? 1024 : 500));
  }
}

TEST_CASE("a push that is refused for its length gives a slot's round no shape") {
  Box box;
  const auto& shard = box.admit(kJob);
  wire::RoundShape other = kShape;
  other.digest = 78;
  box.deliver(push(box, 0, 0, other, 1000));  // not the last, so too short
  CHECK(box.count(Counter::kRejectLength) == 1);
  for (uint32_t rank = 0; rank < kJob.workers; ++rank) {
    box.deliver(push(box, rank, 1, kShape, 0));
  }
  CHECK_FALSE(shard.mismatch());
  CHECK(box.count(Counter::kRejectShape) == 0);
  CHECK(box.count(Counter::kRoundsFinished) == 1);
}

}  // namespace pbox::test::engine_slots_test
