#include <catch2/catch.hpp>
#include <vector>

#include "base/rng.h"
#include "pipeline/egress_queue.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

TEST_CASE("finished chunks leave by priority, and equals in the order in which they finished") {
  std::vector<Chunk> chunks(6);
  EgressQueue queue;
  queue.reserve(chunks.size());
  const int32_t priorities[] = {0, 5, -3, 5, 0, 5};
  for (size_t index = 0; index < chunks.size(); ++index) {
    queue.push(&chunks[index], 7, priorities[index]);
  }
  std::vector<size_t> order;
  FanOut next;
  while (queue.pop(next)) order.push_back(static_cast<size_t>(next.chunk - chunks.data()));
  CHECK(order == std::vector<size_t>{1, 3, 5, 0, 4, 2});
  CHECK(queue.size() == 0);
  CHECK_FALSE(queue.pop(next));
}

TEST_CASE("the order is strict under any interleaving of pushes and pops") {
  Rng rng(3);
  std::vector<Chunk> chunks(1);
  EgressQueue queue;
  queue.reserve(900);
  std::vector<FanOut> waiting;  // the model: a linear search for the best
  uint32_t pushed = 0;
  for (int step = 0; step < 2000; ++step) {
    if (rng.below(2) == 0 && waiting.size() < 900) {
      const auto priority = static_cast<int32_t>(rng.below(4)) - 2;
      queue.push(chunks.data(), pushed, priority);
      waiting.push_back({chunks.data(), pushed, {priority, pushed}});
      ++pushed;
      continue;
    }
    FanOut next;
    REQUIRE(queue.pop(next) == !waiting.empty());
    if (waiting.empty()) continue;
    auto best = waiting.begin();
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (it->place.priority > best->place.priority) best = it;
    }
    REQUIRE(next.round == best->round);
    waiting.erase(best);
  }
}

TEST_CASE("resends leave in order, and successive resends of one chunk to one worker are merged") {
  Chunk chunk;
  Chunk other;
  EgressQueue queue;
  queue.reserve(2);
  CHECK(queue.top_resend() == nullptr);
  CHECK(queue.push_resend({&chunk, 4, 1, 0b001}, 0));
  CHECK(queue.push_resend({&chunk, 4, 1, 0b100}, 0));  // merged
  CHECK(queue.push_resend({&chunk, 4, 2, 0b010}, 0));  // another worker
  CHECK(queue.push_resend({&chunk, 5, 2, 0b010}, 0));  // another round
  CHECK(queue.push_resend({&other, 5, 2, 0b010}, 0));  // another chunk
  const std::vector<Answer> expected = {
      {&chunk, 4, 1, 0b101}, {&chunk, 4, 2, 0b010}, {&chunk, 5, 2, 0b010}, {&other, 5, 2, 0b010}};
  for (const Answer& resend : expected) {
    Answer next;
    REQUIRE(queue.pop_resend(next));
    CHECK(next.chunk == resend.chunk);
    CHECK(next.round == resend.round);
    CHECK(next.rank == resend.rank);
    CHECK(next.mask == resend.mask);
  }
  CHECK(queue.top_resend() == nullptr);
  CHECK(queue.push_resend({&other, 5, 2, 0b1000}, 0));  // a resend that has left is not merged into
  Answer next;
  REQUIRE(queue.pop_resend(next));
  CHECK(next.mask == 0b1000);
}

TEST_CASE("the resend queue refuses resends over its bound, and has room again after a pop") {
  Chunk chunk;
  EgressQueue queue;
  queue.reserve(1);
  uint32_t taken = 0;
  while (taken < 100'000 && queue.push_resend({&chunk, 0, taken, 1}, 0)) ++taken;
  CHECK(taken == 1024);
  CHECK(queue.push_resend({&chunk, 0, taken - 1, 2}, 0));  // merging needs no room
  Answer next;
  REQUIRE(queue.pop_resend(next));
  CHECK(next.rank == 0);
  CHECK(queue.push_resend({&chunk, 0, 7, 1}, 0));
  CHECK_FALSE(queue.push_resend({&chunk, 0, 8, 1}, 0));
}

}  // namespace pbox::pipeline
