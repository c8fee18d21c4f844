#include <catch2/catch.hpp>
#include <set>

#include "appliance/control/job_registry.h"
#include "appliance/control/spi_allocator.h"
#include "nic/wire/header.h"
#include "pipeline/engine.h"
#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control {

TEST_CASE("session numbers are unique, name their pipeline, and leave the direction bit clear") {
  SpiAllocator spis(3, seeded_draws(1));
  std::set<uint32_t> slots, seen;
  for (uint32_t count = 0; count < 900; ++count) {
    const uint32_t pipeline = count % 3;
    const auto spi = spis.allocate(pipeline);
    REQUIRE(spi);
    REQUIRE(seen.insert(*spi).second);
    REQUIRE(pipeline::spi_pipeline(*spi) == pipeline);
    REQUIRE((*spi & wire::kSpiToWorker) == 0);
    REQUIRE(slots.insert(pipeline << 16 | wire::spi_index(*spi)).second);
  }
  REQUIRE(spis.in_use(0) == 300);
  REQUIRE(spis.in_use(2) == 300);
}

TEST_CASE("a released slot is not used again before every other slot has been used") {
  SpiAllocator spis(1, seeded_draws(1));
  const auto first = spis.allocate(0);
  REQUIRE(first);
  spis.release(*first);
  REQUIRE(spis.in_use(0) == 0);
  for (uint32_t turn = 1; turn < limits::kSessionsPerPipelineMax; ++turn) {
    const auto spi = spis.allocate(0);
    REQUIRE(spi);
    REQUIRE(wire::spi_index(*spi) != wire::spi_index(*first));
    spis.release(*spi);
  }
  const auto again = spis.allocate(0);
  REQUIRE(again);
  REQUIRE(wire::spi_index(*again) == wire::spi_index(*first));
}

TEST_CASE(
    "a full table gives no number, other pipelines still do, and a released slot is used again") {
  SpiAllocator spis(2, seeded_draws(1));
  std::vector<uint32_t> taken;
  for (uint32_t count = 0; count < limits::kSessionsPerPipelineMax; ++count) {
    const auto spi = spis.allocate(1);
    REQUIRE(spi);
    taken.push_back(*spi);
  }
  REQUIRE_FALSE(spis.allocate(1));
  REQUIRE(spis.allocate(0));
  REQUIRE(spis.in_use(1) == limits::kSessionsPerPipelineMax);
  spis.release(taken[1234]);
  const auto spi = spis.allocate(1);
  REQUIRE(spi);
  REQUIRE(wire::spi_index(*spi) == wire::spi_index(taken[1234]));
  REQUIRE_FALSE(spis.allocate(1));
}

TEST_CASE("credit is three quarters of the receive buffer, shared by all sessions") {
  REQUIRE(credit_alone(4u << 20, 8) == (3u << 20) / 8);
  REQUIRE(credit_alone(1u << 20, 3) == (3u << 18) / 3);
  for (const uint32_t sessions : {1u, 2u, 3u, 7u, 100u, 1000u}) {
    const uint32_t credit = credit_alone(1u << 20, sessions);
    REQUIRE(credit % limits::kCreditUnitBytes == 0);
    REQUIRE(uint64_t{credit} * sessions <= 3u << 18);
  }
}

TEST_CASE(
    "credit is bounded by the window, by what the header can say, and from below by one unit") {
  REQUIRE(credit_alone(64u << 20, 1) == kWindowBytes);
  REQUIRE(credit_alone(64u << 20, 1, 100'000) == 99'840);    // rounded down to units
  REQUIRE(credit_alone(1u << 20, 1, 4u << 20) == 3u << 18);  // the buffer is the tighter bound
  REQUIRE(credit_alone(1u << 30, 1, 1u << 29) == limits::kCreditBytesMax);
  REQUIRE(credit_alone(64u << 20, 8, kWindowBytes / 4) ==
          1u << 18);  // one of four parts on one path
  REQUIRE(credit_alone(1u << 20, 8, kWindowBytes / 4) == 3u << 15);
  REQUIRE(credit_alone(1000, 4096) == limits::kCreditUnitBytes);
}

TEST_CASE("tenants have credit in proportion to their weights, whatever the number of sessions") {
  struct Row {
    uint32_t receive_buffer_bytes;
    TenantDemand few, many;
    uint32_t few_sessions, many_sessions;
  };
  const Row rows[] = {
      {8u << 20,
       {1, 2 * kWindowBytes},
       {1, 48 * kWindowBytes},
       2,
       48},  // the buffer bounds one of them
      {8u << 20,
       {3, 2 * kWindowBytes},
       {1, 48 * kWindowBytes},
       2,
       48},  // the window bounds the other
      {1u << 20, {1, 2 * kWindowBytes}, {3, 6 * kWindowBytes}, 2, 6},     // the buffer bounds both
      {512u << 20, {1, 4 * kWindowBytes}, {4, 4 * kWindowBytes}, 4, 4}};  // the window bounds both
  for (const Row& row : rows) {
    const TenantDemand tenants[] = {row.few, row.many};
    const uint64_t few = uint64_t{row.few_sessions} *
                         credit_share(row.receive_buffer_bytes, tenants, row.few, kWindowBytes);
    const uint64_t many = uint64_t{row.many_sessions} *
                          credit_share(row.receive_buffer_bytes, tenants, row.many, kWindowBytes);
    const double ratio = static_cast<double>(few) / static_cast<double>(many);
    const double wanted = static_cast<double>(row.few.weight) / row.many.weight;
    CHECK(ratio / wanted == Approx(1).epsilon(0.02));
    CHECK(few + many <= uint64_t{row.receive_buffer_bytes} * 3 / 4);
    CHECK(few <= row.few_sessions * kWindowBytes);
    CHECK(many <= row.many_sessions * kWindowBytes);
  }
}

}  // namespace pbox::control
