#include <catch2/catch.hpp>

#include "worker/membership/priorities.h"

namespace pbox::worker {

using Policy = wire::PriorityPolicy;
using List = std::vector<int32_t>;

TEST_CASE("an explicit priority is the operation's, else the set one, else the registered one") {
  Priorities priorities(Policy::kExplicit, {7, 8});
  CHECK(priorities.of(1, std::nullopt) == 8);
  CHECK(priorities.of(1, -3) == -3);
  priorities.set(Policy::kExplicit, List{1, 2});
  CHECK(priorities.of(1, std::nullopt) == 2);
  CHECK(priorities.of(1, -3) == -3);
  priorities.set(Policy::kExplicit, {});
  CHECK(priorities.of(1, std::nullopt) == 8);
}

TEST_CASE("with fifo all operations have the same priority") {
  const Priorities priorities(Policy::kFifo, {7, 8});
  CHECK(priorities.of(0, std::nullopt) == priorities.of(1, 99));
}

TEST_CASE(
    "forward order uses registered priorities until it is learned, then only the learned ones") {
  Priorities priorities(Policy::kForwardOrder, {7, 8});
  CHECK(priorities.is_to_be_learned());
  CHECK(priorities.of(0, std::nullopt) == 7);
  priorities.set(Policy::kForwardOrder, List{2, 1});
  CHECK_FALSE(priorities.is_to_be_learned());
  CHECK(priorities.of(0, 99) == 2);
}

TEST_CASE("the tensor that the backward pass starts last gets the highest priority") {
  Priorities priorities(Policy::kForwardOrder, {0, 0, 0});
  priorities.learn_from(1);
  CHECK_FALSE(priorities.note_start(0, 0));  // a round that began earlier
  CHECK_FALSE(priorities.note_start(2, 1));
  CHECK_FALSE(priorities.note_start(0, 1));
  CHECK_FALSE(priorities.note_start(2, 2));  // one round ahead
  CHECK_FALSE(priorities.note_start(0, 1));
  const auto learned = priorities.note_start(1, 1);
  REQUIRE(learned);
  CHECK(*learned == List{2, 3, 1});
  CHECK_FALSE(priorities.note_start(1, 1));  // only the first start counts
}

TEST_CASE("the order is learned only on request, and can be learned again") {
  Priorities priorities(Policy::kExplicit, {0});
  CHECK_FALSE(priorities.note_start(0, 0));
  priorities.learn_from(5);
  CHECK(priorities.note_start(0, 5));
  priorities.learn_from(6);
  CHECK(priorities.note_start(0, 6));
}

}  // namespace pbox::worker
