// Tests how packets that carry a table's rows are written and read, with random layouts and rows.
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "nic/wire/rows.h"

namespace pbox::wire {
namespace {

struct Table {
  RowLayout layout;
  std::vector<std::byte> chunk;  // each row's bytes show the row and their place
  std::vector<uint32_t> bits;

  explicit Table(const RowLayout& rows) : layout(rows), bits(row_words(rows.row_count())) {
    chunk.resize(layout.chunk_bytes);
    for (uint32_t at = 0; at < layout.chunk_bytes; ++at) {
      chunk[at] = static_cast<std::byte>(at * 7 + at / 251);
    }
  }
  void set(uint32_t row) { bits[row / kRowWordBits] |= 1u << (row % kRowWordBits); }
};

struct Packet {
  Header header;
  std::vector<std::byte> payload;
  uint64_t fragments = 0;
  Parsed parsed() const { return {header, payload.data()}; }
};

// Returns the packets of the chunk, including those of whole fragments.
std::vector<Packet> packets_of(const Table& table) {
  std::vector<Packet> packets;
  const RowLayout& layout = table.layout;
  for (uint32_t fragment = 0; fragment < layout.fragment_count();) {
    Packet& packet = packets.emplace_back();
    packet.header.fragment = static_cast<uint16_t>(fragment);
    packet.payload.resize(layout.fragment_bytes);
    const uint32_t count = fragments_by_rows(layout, table.bits, fragment);
    const RowRange range(layout, fragment, std::max(count, 1u));
    uint32_t bytes = range.end - range.begin;
    if (count > 0) {
      packet.header.flags = flag::kRows;
      bytes = write_rows(layout, table.bits, fragment, count, packet.payload.data(),
                         [&](uint32_t row, uint32_t begin, uint32_t end) {
                           REQUIRE(begin >= layout.begin_of(row));
                           REQUIRE(end <= layout.end_of(row));
                           return table.chunk.data() + begin;
                         });
    } else {
      std::memcpy(packet.payload.data(), table.chunk.data() + range.begin, bytes);
      packet.header.dtype_scale =
          static_cast<uint16_t>(lacking_rows(layout, table.bits, fragment) << 4);
    }
    REQUIRE(bytes <= layout.fragment_bytes);
    packet.payload.resize(bytes);
    packet.header.payload_bytes = static_cast<uint16_t>(bytes);
    packet.fragments = full_mask(std::max(count, 1u)) << fragment;
    fragment += std::max(count, 1u);
  }
  return packets;
}

RowLayout any_layout(Rng& rng) {
  RowLayout layout;
  layout.row_bytes = 4 * static_cast<uint32_t>(1 + rng.below(rng.below(2) == 0 ? 8 : 600));
  layout.skipped_bytes = 4 * static_cast<uint32_t>(rng.below(layout.row_bytes / 4));
  layout.fragment_bytes = 512 + 64 * static_cast<uint32_t>(rng.below(15));
  layout.chunk_bytes =
      4 * static_cast<uint32_t>(1 + rng.below(uint64_t{layout.fragment_bytes} * 64 / 4));
  return layout;
}

}  // namespace

TEST_CASE("the rows of a chunk lie one behind the other, wherever in a row it begins") {
  Rng rng(1);
  for (uint32_t turn = 0; turn < 300; ++turn) {
    const RowLayout layout = any_layout(rng);
    uint32_t at = 0;
    for (uint32_t row = 0; row < layout.row_count(); ++row) {
      REQUIRE(layout.begin_of(row) == at);
      REQUIRE(layout.end_of(row) > at);
      REQUIRE(layout.row_at(at) == row);
      REQUIRE(layout.row_at(layout.end_of(row) - 1) == row);
      at = layout.end_of(row);
    }
    REQUIRE(at == layout.chunk_bytes);
  }
}

TEST_CASE(
    "packets by rows give back exactly the bytes of their rows, and cover each fragment once") {
  Rng rng(2);
  for (uint32_t turn = 0; turn < 300; ++turn) {
    Table table(any_layout(rng));
    const uint64_t one_in = uint64_t{1} << rng.below(9);
    const bool is_left_out = rng.below(2) == 0;  // leaves out one row in `one_in`, else sends one
    for (uint32_t row = 0; row < table.layout.row_count(); ++row) {
      if ((rng.below(one_in) == 0) != is_left_out) table.set(row);
    }
    std::vector<std::byte> found(table.chunk.size());
    std::vector<bool> written(table.chunk.size());
    uint64_t covered = 0;
    const bool is_lazy = table.layout.row_bytes >= kRowBytesLazyMin;
    for (const Packet& packet : packets_of(table)) {
      REQUIRE((covered & packet.fragments) == 0);
      covered |= packet.fragments;
      RowsView rows;
      REQUIRE(read_push(table.layout, packet.parsed(), rows));
      REQUIRE(rows.fragments == packet.fragments);
      for_each_run(table.layout, rows, [&](const RowRun& run, const std::byte* source) {
        std::memcpy(found.data() + run.begin, source, run.end - run.begin);
        for (uint32_t at = run.begin; at < run.end; ++at) {
          REQUIRE_FALSE(written[at]);
          written[at] = true;
          const uint32_t row = table.layout.row_at(at);
          REQUIRE((run.first_row <= row && row < run.end_row));
          // Other rows are sent only in whole fragments, and only if rows are small.
          REQUIRE((has_row(table.bits, row) || (!is_lazy && packet.header.flags == 0)));
        }
      });
    }
    REQUIRE(covered == full_mask(table.layout.fragment_count()));
    for (uint32_t at = 0; at < table.layout.chunk_bytes; ++at) {
      if (!has_row(table.bits, table.layout.row_at(at))) continue;
      REQUIRE(written[at]);
      REQUIRE(found[at] == table.chunk[at]);
    }
  }
}

TEST_CASE("a chunk of which few rows are sent takes one packet") {
  Table table(
      {.row_bytes = 256, .skipped_bytes = 0, .chunk_bytes = 32'256, .fragment_bytes = 1408});
  CHECK(packets_of(table).size() == 1);
  CHECK(packets_of(table)[0].payload.size() == 4 + 16);
  table.set(3);
  table.set(100);
  table.set(125);
  CHECK(packets_of(table).size() == 1);
  CHECK(packets_of(table)[0].payload.size() == 4 + 16 + 3 * 256);
}

TEST_CASE("a fragment of which all rows are sent goes whole, and larger rows always find room") {
  for (const uint32_t fragment_bytes : {512u, 1408u, 8192u, 32768u}) {
    for (const uint32_t row_bytes : {128u, 132u, 200u, 256u, 4000u}) {
      Table table({.row_bytes = row_bytes,
                   .skipped_bytes = 64,
                   .chunk_bytes = 3 * fragment_bytes,
                   .fragment_bytes = fragment_bytes});
      const uint32_t rows = table.layout.row_count();
      for (uint32_t row = 0; row < rows; ++row) table.set(row);
      for (const Packet& packet : packets_of(table)) CHECK(packet.header.flags == 0);
      // Some row of each fragment is left out: no fragment may be sent whole.
      for (uint32_t fragment = 0; fragment < 3; ++fragment) {
        const RowRange range(table.layout, fragment, 1);
        if (range.row_count < 2) continue;
        const uint32_t row = range.first_row + range.row_count / 2;
        table.bits[row / kRowWordBits] &= ~(1u << (row % kRowWordBits));
        INFO(fragment_bytes << " " << row_bytes);
        CHECK(fragments_by_rows(table.layout, table.bits, fragment) > 0);
      }
    }
  }
}

TEST_CASE("a malformed payload by rows is refused, and none is read beyond its end") {
  const RowLayout layout{
      .row_bytes = 100, .skipped_bytes = 20, .chunk_bytes = 3000, .fragment_bytes = 1024};
  Table table(layout);
  for (const uint32_t row : {0u, 10u, 29u}) table.set(row);
  const Packet sound = packets_of(table).at(0);
  RowsView rows;
  REQUIRE(parse_rows(layout, sound.parsed(), rows));
  const auto refuses = [&](auto&& spoil) {
    Packet packet = sound;
    spoil(packet);
    packet.header.payload_bytes = static_cast<uint16_t>(packet.payload.size());
    return !parse_rows(layout, packet.parsed(), rows);
  };
  CHECK(refuses([](Packet& packet) { packet.payload.pop_back(); }));
  CHECK(refuses([](Packet& packet) { packet.payload.emplace_back(); }));
  CHECK(refuses([](Packet& packet) { packet.payload.resize(3); }));
  CHECK(refuses([](Packet& packet) { packet.payload.resize(6); }));
  CHECK(refuses([](Packet& packet) { packet.payload[0] = std::byte{0}; }));
  CHECK(refuses([](Packet& packet) { packet.payload[0] = std::byte{4}; }));
  CHECK(refuses([](Packet& packet) { packet.payload[2] = std::byte{1}; }));
  CHECK(refuses([](Packet& packet) { packet.header.fragment = 1; }));
  CHECK(refuses([](Packet& packet) { packet.header.fragment = 60000; }));
  CHECK(refuses([](Packet& packet) { packet.payload[4] ^= std::byte{2}; }));    // another row
  CHECK(refuses([](Packet& packet) { packet.payload[7] |= std::byte{128}; }));  // row 31 of 31

  Rng rng(3);
  for (uint32_t turn = 0; turn < 20'000; ++turn) {
    const RowLayout any = any_layout(rng);
    std::vector<std::byte> payload(rng.below(any.fragment_bytes + 1));
    for (std::byte& byte : payload) byte = static_cast<std::byte>(rng.next() & rng.next());
    if (payload.size() >= 4) {
      payload[0] = static_cast<std::byte>(rng.below(4));
      payload[1] = payload[2] = payload[3] = std::byte{0};
    }
    Header header;
    header.fragment = static_cast<uint16_t>(rng.below(66));
    header.payload_bytes = static_cast<uint16_t>(payload.size());
    if (!parse_rows(any, {header, payload.data()}, rows)) continue;
    for_each_run(any, rows, [&](const RowRun& run, const std::byte* source) {
      REQUIRE(run.begin < run.end);
      REQUIRE(run.end <= any.chunk_bytes);
      REQUIRE(source >= payload.data());
      REQUIRE(source + (run.end - run.begin) <= payload.data() + payload.size());
    });
  }
}

}  // namespace pbox::wire
