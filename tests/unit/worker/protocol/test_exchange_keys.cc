// A worker whose session has keys.
#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/nic/crypto/seal_pair.h"
#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_keys_test {
namespace {

using Bytes = std::vector<std::byte>;

struct KeyedShim {
  explicit KeyedShim(crypto::Suite suite)
      : pair({.suite = suite, .spi = kSpi}),
        shim({.tensor_chunks = {1, 1, 1},
              .seal = std::make_shared<seal::SessionSeal>(std::move(pair.worker))}) {}

  void deliver(const Answer& answer) {
    const Bytes bytes = sealed_bytes(pair.box, answer.header, answer.payload);
    const nic::RxPacket packet{bytes.data(), static_cast<uint32_t>(bytes.size()), {}};
    shim.exchange.on_burst(0, {&packet, 1}, shim.now_ns);
  }
  float first_value(const nic::TxPacket& packet) {
    Bytes payload;
    REQUIRE(opens(pair.box, packet_bytes(packet), &payload));
    float value = 0;
    std::memcpy(&value, payload.data(), sizeof(value));
    return value;
  }

  SealPair pair;
  Shim shim;
};

}  // namespace

TEST_CASE("with keys a worker's pushes open at the box, and only what the box has sealed counts") {
  for (const auto suite : {crypto::Suite::kGmac256, crypto::Suite::kGcm256}) {
    KeyedShim keyed(suite);
    Shim& shim = keyed.shim;
    shim.start(0, 2.5f);
    const auto packets = shim.exchange.to_send(0, shim.now_ns);
    REQUIRE(packets.size() == 4);
    for (const nic::TxPacket& packet : packets) CHECK(keyed.first_value(packet) == 2.5f);
    shim.exchange.sent(0, packets.size());
    shim.deliver_result(0, 0, 7.0f);  // with a checksum
    CHECK(shim.exchange.statistics().rejected_packets == 4);
    for (uint32_t fragment = 0; fragment < 4; ++fragment) {
      keyed.deliver(shim.result(0, 0, fragment, 5.0f));
    }
    CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
    CHECK(shim.buffer(0).front() == 5.0f);
    CHECK(shim.buffer(0).back() == 5.0f);
  }
}

TEST_CASE("packets that wait for the port are sealed again for a new generation, each as its own") {
  for (const auto suite : {crypto::Suite::kGmac256, crypto::Suite::kGcm256}) {
    KeyedShim keyed(suite);
    Shim& shim = keyed.shim;
    for (uint32_t tensor = 0; tensor < 3; ++tensor) shim.start(tensor, 1.0f + float(tensor));
    REQUIRE(shim.exchange.to_send(0, shim.now_ns).size() == 12);
    // The box had chunk 1 from an earlier session.
    for (uint32_t fragment = 0; fragment < 4; ++fragment) {
      keyed.deliver(shim.result(1, 0, fragment, 9.0f));
    }
    const auto packets = shim.exchange.to_send(0, shim.now_ns);
    const size_t left = packets.size();
    shim.exchange.set_generation(static_cast<uint16_t>(shim.session.generation + 1));
    const auto again = shim.exchange.to_send(0, shim.now_ns);
    REQUIRE(again.size() == left);
    REQUIRE(left == 8);
    std::map<uint32_t, int> opened;
    for (const nic::TxPacket& packet : again) {
      CHECK(packet.header.generation == shim.session.generation + 1);
      CHECK(packet.header.packet_number > 12);
      CHECK(keyed.first_value(packet) == 1.0f + float(packet.header.chunk));
      ++opened[packet.header.chunk];
    }
    CHECK(opened == std::map<uint32_t, int>{{0, 4}, {2, 4}});
  }
}

}  // namespace pbox::test::exchange_keys_test
