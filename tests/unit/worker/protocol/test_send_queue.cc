#include <catch2/catch.hpp>
#include <vector>

#include "worker/protocol/send_queue.h"

namespace pbox::worker {

TEST_CASE("waiting chunks are sent by priority, and in queue order among equals") {
  SendQueue queue;
  CHECK(queue.empty());
  const int32_t priorities[] = {0, 3, -1, 3, 0, INT32_MAX, INT32_MIN, 3};
  for (uint32_t chunk = 0; chunk < 8; ++chunk) queue.push(chunk, priorities[chunk]);
  std::vector<uint32_t> order;
  for (; !queue.empty(); queue.pop()) order.push_back(queue.top());
  CHECK(order == std::vector<uint32_t>{5, 1, 3, 7, 0, 4, 2, 6});
}

TEST_CASE("a late chunk overtakes only less urgent ones") {
  SendQueue queue;
  for (uint32_t chunk = 0; chunk < 4; ++chunk) queue.push(chunk, 1);
  queue.pop();
  queue.push(9, 2);
  queue.push(10, 1);
  CHECK(queue.top() == 9);
  queue.pop();
  std::vector<uint32_t> order;
  for (; !queue.empty(); queue.pop()) order.push_back(queue.top());
  CHECK(order == std::vector<uint32_t>{1, 2, 3, 10});
}

}  // namespace pbox::worker
