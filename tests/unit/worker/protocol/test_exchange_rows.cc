// Tables on a worker: what is pushed, and how results change the table. One tensor of two chunks of
// four fragments; a row has 40 elements, so row 25 begins in chunk 0 and ends in chunk 1.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {
namespace {

using wire::PacketType;
using Rows = std::set<uint64_t>;

constexpr uint32_t kRowElements = 40;
constexpr uint32_t kElements = 2 * kChunkBytes / sizeof(float);
constexpr uint64_t kRows = (kElements + kRowElements - 1) / kRowElements;
constexpr uint64_t kAll = 0xf;

wire::RowLayout layout_of(uint32_t chunk) {
  return {.row_bytes = kRowElements * 4,
          .skipped_bytes = chunk * kChunkBytes % (kRowElements * 4),
          .chunk_bytes = kChunkBytes,
          .fragment_bytes = kFragmentBytes};
}

class Table {
 public:
  explicit Table(const ShimOptions& options) : shim(options) {
    shim.start(0, 100.0f);
    shim.take_all();
    for (const uint32_t chunk : {0u, 1u}) shim.deliver_result(chunk, 0, 100.0f);
    REQUIRE(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  }

  // Starts an operation that pushes these rows. Element i of row r of the gradient is 1000 r + i.
  void start(const Rows& rows) {
    ids_.assign(rows.begin(), rows.end());
    values_.clear();
    for (const uint64_t row : rows) {
      for (uint32_t element = 0; element < kRowElements; ++element) {
        values_.push_back(static_cast<float>(1000 * row + element));
      }
    }
    shim.exchange.start({.tensor = 0,
                         .output = reinterpret_cast<std::byte*>(shim.buffer(0).data()),
                         .rows = std::make_shared<const worker::RowPush>(worker::RowPush{
                             .ids = ids_,
                             .values = reinterpret_cast<const std::byte*>(values_.data()),
                             .row_bytes = kRowElements * 4})});
  }

  // Returns the rows of a push, with their bytes checked.
  static Rows pushed(const Pushed& packet) {
    const wire::RowLayout layout = layout_of(packet.header.chunk);
    wire::RowsView view;
    REQUIRE(wire::read_push(layout, {packet.header, packet.payload.data()}, view));
    Rows rows;
    wire::for_each_run(layout, view, [&](const wire::RowRun& run, const std::byte* source) {
      for (uint32_t at = run.begin; at < run.end; at += 4) {
        const uint64_t element = (packet.header.chunk * uint64_t{kChunkBytes} + at) / 4;
        float value = 0;
        std::memcpy(&value, source + (at - run.begin), sizeof(value));
        const uint64_t row = element / kRowElements;
        REQUIRE(value == static_cast<float>(1000 * row + element % kRowElements));
        rows.insert(row);
      }
    });
    return rows;
  }

  // Returns a result that changes these rows of a chunk, numbered from its first one, to `value`.
  Answer result(uint32_t chunk, uint32_t round, const std::set<uint32_t>& rows, float value) {
    Answer answer = shim.result(chunk, round, 0, value);
    const wire::RowLayout layout = layout_of(chunk);
    std::vector<uint32_t> bits(wire::row_words(layout.row_count()));
    for (const uint32_t row : rows) bits[row / 32] |= 1u << (row % 32);
    const std::vector<float> values(kRowElements, value);
    const uint32_t count = wire::fragments_by_rows(layout, bits, 0);
    REQUIRE(count == 4);
    const uint32_t bytes = wire::write_rows(
        layout, bits, 0, count, answer.payload.data(), [&](uint32_t, uint32_t, uint32_t) {
          return reinterpret_cast<const std::byte*>(values.data());
        });
    answer.payload.resize(bytes);
    answer.header.payload_bytes = static_cast<uint16_t>(bytes);
    answer.header.flags = wire::flag::kRows;
    return answer;
  }
  float at(uint64_t element) { return shim.buffer(0)[element]; }
  uint64_t changed() {
    const auto& table = shim.buffer(0);
    return static_cast<uint64_t>(
        std::count_if(table.begin(), table.end(), [](float value) { return value != 100; }));
  }

  Shim shim;

 private:
  std::vector<uint64_t> ids_;
  std::vector<float> values_;
};

ShimOptions options(bool has_shadow = false) {
  ShimOptions options = {.tensor_chunks = {2}, .has_shadow = has_shadow};
  options.row_elements = kRowElements;
  options.shadows = 2;
  return options;
}

}  // namespace

TEST_CASE("a push carries the rows of each chunk in as few packets as they fit") {
  Table table(options());
  table.start({2, 25, 26});
  const auto pushes = table.shim.take_all(PacketType::kPush);
  REQUIRE(pushes.size() == 2);
  CHECK(Table::pushed(pushes[0]) == Rows{2, 25});
  CHECK(Table::pushed(pushes[1]) == Rows{25, 26});
  CHECK(pushes[0].payload.size() == 8 + 160 + 96);  // row 25 has 96 bytes there
  CHECK(table.shim.exchange.statistics().bytes_pushed ==
        kElements * 4 + pushes[0].payload.size() + pushes[1].payload.size());
}

TEST_CASE("rows that do not fit one packet take more, and a push of all rows goes whole") {
  Table table(options());
  Rows rows;
  for (uint64_t row = 0; row < kRows; ++row) rows.insert(row);
  table.start(rows);
  Rows found;
  size_t packets = 0;
  for (const Pushed& push : table.shim.take_all(PacketType::kPush)) {
    ++packets;
    CHECK((push.header.flags & wire::flag::kRows) == 0);
    const Rows some = Table::pushed(push);
    found.insert(some.begin(), some.end());
  }
  CHECK(packets == 8);
  CHECK(found == rows);
}

TEST_CASE("an operation without rows pushes a packet for each chunk") {
  Table table(options());
  table.start({});
  const auto pushes = table.shim.take_all(PacketType::kPush);
  REQUIRE(pushes.size() == 2);
  for (const Pushed& push : pushes) CHECK(Table::pushed(push).empty());
}

TEST_CASE("a result changes the rows that it carries, once all of the chunk is there") {
  Table table(options(GENERATE(false, true)));
  table.start({2});
  table.shim.take_all();
  table.shim.deliver(table.result(0, 1, {2, 3}, 7));
  CHECK(table.shim.exchange.busy(0));
  CHECK(table.changed() == 2 * kRowElements);
  table.shim.deliver(table.result(1, 1, {}, 7));
  CHECK_FALSE(table.shim.exchange.busy(0));
  CHECK(table.changed() == 2 * kRowElements);
  CHECK(table.at(2 * kRowElements) == 7);
  CHECK(table.at(4 * kRowElements) == 100);
}

TEST_CASE("an incomplete result leaves the table as it was, also if the session ends") {
  Table table(options(true));
  table.start({2});
  table.shim.take_all();
  table.shim.deliver(table.shim.result(0, 1, 1, 7.0f));  // one whole fragment, sent again
  CHECK(table.changed() == 0);
  REQUIRE(table.shim.resume({1, 1}));
  CHECK(table.changed() == 0);
  CHECK_FALSE(table.shim.exchange.lacks_result(0));
  table.shim.take_all();
  for (const uint32_t chunk : {0u, 1u}) table.shim.deliver(table.result(chunk, 1, {2}, 9));
  CHECK_FALSE(table.shim.exchange.busy(0));
  CHECK(table.changed() == 2 * kRowElements);
}

TEST_CASE("rows and whole fragments of one result may arrive in any order") {
  Table table(options());
  table.start({2});
  table.shim.take_all();
  table.shim.deliver(table.shim.result(0, 1, 3, 100.0f));
  table.shim.deliver(table.result(0, 1, {2}, 7));
  table.shim.deliver(table.shim.result(0, 1, 0, 7.0f));  // late, and not needed
  table.shim.deliver(table.result(1, 1, {}, 7));
  CHECK_FALSE(table.shim.exchange.busy(0));
  CHECK(table.changed() == kRowElements);
}

TEST_CASE("the shadow of a table is one copy, and holds the whole result") {
  Table table(options(true));
  CHECK(table.shim.exchange.statistics().shadow_bytes == 2 * kChunkBytes);
  for (const uint32_t round : {1u, 2u}) {
    table.start({});
    table.shim.take_all();
    table.shim.deliver(table.result(0, round, {round}, 7));
    table.shim.deliver(table.result(1, round, {}, 7));
    REQUIRE_FALSE(table.shim.exchange.busy(0));
  }
  REQUIRE(table.shim.resume({2, 3}, {0}));
  std::vector<float> given(kChunkBytes / 4);
  uint64_t fragments = 0;
  for (const Pushed& packet : table.shim.take_all(PacketType::kState)) {
    REQUIRE(packet.header.round == 2);
    REQUIRE(packet.payload.size() == kFragmentBytes);
    fragments |= uint64_t{1} << packet.header.fragment;
    std::memcpy(given.data() + packet.header.fragment * kFragmentBytes / 4, packet.payload.data(),
                kFragmentBytes);
  }
  CHECK(fragments == kAll);
  const auto& buffer = table.shim.buffer(0);
  CHECK(std::equal(given.begin(), given.end(), buffer.begin()));
  CHECK(given[kRowElements] == 7);
  CHECK(given[2 * kRowElements] == 7);
}

TEST_CASE("lost packets are pushed again as they were") {
  Table table(options());
  Rows rows;
  for (uint64_t row = 0; row < 20; row += 2) rows.insert(row);
  table.start(rows);
  const auto first = table.shim.take_all(PacketType::kPush);
  REQUIRE(first.size() == 4);  // three of chunk 0
  table.shim.deliver(table.shim.status(0, 1, 0b0001));
  const auto again = table.shim.take_all(PacketType::kPush);
  REQUIRE(again.size() == 2);
  for (const size_t index : {0u, 1u}) {
    CHECK(again[index].header.fragment == first[index + 1].header.fragment);
    CHECK(again[index].payload == first[index + 1].payload);
    CHECK((again[index].header.flags & wire::flag::kRetransmission) != 0);
  }
}

TEST_CASE("a worker that fetches the table takes whole fragments only") {
  ShimOptions fetching = options(true);
  fetching.open_rounds = {3, 3};
  Shim shim(fetching);
  auto* data = reinterpret_cast<std::byte*>(shim.buffer(0).data());
  shim.exchange.start({.tensor = 0, .input = data, .output = data, .fetch = true});
  shim.take_all();
  Answer by_rows = shim.result(0, 2, 0, 0);
  by_rows.payload.resize(8);
  std::memset(by_rows.payload.data(), 0, 8);
  by_rows.payload[0] = std::byte{4};
  by_rows.header.payload_bytes = 8;
  by_rows.header.flags = wire::flag::kRows;
  shim.deliver(by_rows);
  CHECK(shim.exchange.busy(0));
  for (const uint32_t chunk : {0u, 1u}) shim.deliver_result(chunk, 2, 5.0f);
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.buffer(0).front() == 5.0f);
}

TEST_CASE("a malformed result by rows is rejected") {
  Table table(options());
  table.start({2});
  table.shim.take_all();
  Answer answer = table.result(0, 1, {2}, 7);
  answer.payload.pop_back();
  answer.header.payload_bytes -= 1;
  const uint64_t before = table.shim.exchange.statistics().rejected_packets;
  table.shim.deliver(answer);
  CHECK(table.shim.exchange.statistics().rejected_packets == before + 1);
  CHECK(table.shim.exchange.busy(0));
  CHECK(table.changed() == 0);
}

}  // namespace pbox::test
