#include <catch2/catch.hpp>

#include "appliance/control/recovery_plan.h"

namespace pbox::control {
namespace {

Result<std::vector<ChunkStart>> plan(const std::vector<std::vector<uint32_t>>& consumed) {
  std::vector<ConsumedRounds> stated;
  for (uint32_t rank = 0; rank < consumed.size(); ++rank) {
    stated.push_back({rank, consumed[rank], {}});
  }
  return plan_recovery(stated, static_cast<uint32_t>(consumed[0].size()));
}

}  // namespace

TEST_CASE("a round that nobody has consumed is summed, one that somebody has is copied from him") {
  const auto starts = plan({{4, 4, 7, 0}, {4, 5, 7, 0}, {4, 5, 6, 0}});
  REQUIRE(starts.ok());
  const struct {
    uint32_t round, copy_rank;
  } expected[] = {{4, pipeline::kNoRank}, {4, 1}, {6, 0}, {0, pipeline::kNoRank}};
  for (size_t chunk = 0; chunk < std::size(expected); ++chunk) {
    CAPTURE(chunk);
    CHECK((*starts)[chunk].round == expected[chunk].round);
    CHECK((*starts)[chunk].copy_rank == expected[chunk].copy_rank);
  }
}

TEST_CASE("weights that were on the box come back for every chunk, from who consumed them last") {
  const std::vector<std::vector<uint32_t>> rounds = {{4, 4, 0, 6}, {4, 5, 0, 6}};
  std::vector<ConsumedRounds> stated = {{0, rounds[0], {true, false, false, false}},
                                        {1, rounds[1], {}}};
  auto starts = plan_recovery(stated, 4);
  REQUIRE(starts.ok());
  REQUIRE(open_for_weights(stated, *starts));
  const struct {
    uint32_t round, copy_rank;
  } expected[] = {{3, 1}, {4, 1}, {0, pipeline::kNoRank}, {5, 0}};
  for (size_t chunk = 0; chunk < std::size(expected); ++chunk) {
    CAPTURE(chunk);
    CHECK((*starts)[chunk].round == expected[chunk].round);
    CHECK((*starts)[chunk].copy_rank == expected[chunk].copy_rank);
  }

  stated[0].lacks[3] = true;
  stated[1].lacks = {false, false, false, true};
  starts = plan_recovery(stated, 4);
  const Status nobody = open_for_weights(stated, *starts);
  REQUIRE(!nobody);
  CHECK(nobody.error().message.find("chunk 3 after round 5 were lost with the box") !=
        std::string::npos);
}

TEST_CASE("a tensor's chunks open at one round for a worker that is new, the others by a copy") {
  const std::vector<uint32_t> uneven{3, 2, 5};
  std::vector<ConsumedRounds> stated{{1, uneven, {true, false, false}}, {2, uneven, {}}};
  auto starts = plan_recovery(stated, 3);
  REQUIRE(starts.ok());
  REQUIRE(open_for_newcomers(stated, std::vector<uint32_t>{2, 1}, *starts).ok());
  CHECK((*starts)[0].round == 2);
  CHECK((*starts)[0].copy_rank == 2);
  CHECK((*starts)[1].round == 2);
  CHECK((*starts)[1].copy_rank == pipeline::kNoRank);
  CHECK((*starts)[2].round == 5);

  stated.pop_back();
  starts = plan_recovery(stated, 3);
  const Status status = open_for_newcomers(stated, std::vector<uint32_t>{2, 1}, *starts);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message.find("round 2 of chunk 0") != std::string::npos);
}

TEST_CASE("a round is copied from who has its result, not from who began behind it") {
  const std::vector<uint32_t> behind{4}, beyond{5}, consumed{5};
  const ConsumedRounds zero{0, behind}, fresh{1, beyond, {true}}, holder{2, consumed, {false}};
  const auto with_holder = plan_recovery(std::vector{zero, fresh, holder}, 1);
  REQUIRE(with_holder.ok());
  CHECK((*with_holder)[0].copy_rank == 2);
  CHECK_FALSE(is_beyond(fresh, *with_holder));
  CHECK_FALSE(is_beyond(holder, *with_holder));

  const auto without = plan_recovery(std::vector{zero, fresh}, 1);
  REQUIRE(without.ok());
  CHECK((*without)[0].round == 4);
  CHECK((*without)[0].copy_rank == pipeline::kNoRank);
  CHECK(is_beyond(fresh, *without));
  CHECK_FALSE(is_beyond(zero, *without));
}

TEST_CASE("rounds are compared over the end of their numbers") {
  const auto starts = plan({{UINT32_MAX}, {0}});
  REQUIRE(starts.ok());
  CHECK((*starts)[0].round == UINT32_MAX);
  CHECK((*starts)[0].copy_rank == 1);
}

TEST_CASE("ranks that are two rounds apart were never in one job") {
  const auto starts = plan({{3, 3}, {3, 5}});
  REQUIRE_FALSE(starts.ok());
  CHECK(starts.error().code == ErrorCode::kMismatch);
  CHECK_THAT(starts.error().message, Catch::Contains("chunk 1") &&
                                         Catch::Contains("rank 1 has 5") &&
                                         Catch::Contains("rank 0 has 3"));
}

}  // namespace pbox::control
