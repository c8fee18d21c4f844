// Tables on a box: which rows are summed and stepped, and which are sent. The job has one chunk of
// 768 elements, in three fragments of 256. Its rows have 50 elements; the first 10 elements of its
// first row are in an earlier chunk. Row 5 begins in fragment 0 and ends in fragment 1.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "nic/wire/rows.h"
#include "pipeline/optimizer/reference.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_tables_test {
namespace {

using optimizer::OptimizerKind;
using pipeline::Counter;
using Rows = std::set<uint32_t>;

constexpr float kInitial = 100;
constexpr uint32_t kElements = 768;

struct TableJob {
  explicit TableJob(const optimizer::OptimizerSpec& optimizer, uint32_t workers = 2,
                    const wire::SyncSpec& sync = {}) {
    options.workers = workers;
    options.mode = pipeline::Mode::kOptimize;
    options.optimizer = optimizer;
    options.sync = sync;
    options.row_bytes = 200;
    options.row_skipped_bytes = 40;
  }

  wire::RowLayout layout() const {
    return {options.row_bytes, options.row_skipped_bytes, kElements * 4, options.fragment_bytes};
  }
  std::vector<uint32_t> bits(const Rows& rows) const {
    std::vector<uint32_t> bits(wire::row_words(layout().row_count()));
    for (const uint32_t row : rows) bits[row / 32] |= 1u << (row % 32);
    return bits;
  }

  // Installs the job and pushes its initial weights. Returns the packets that leave.
  std::vector<Sent> begin() {
    shard = &box.admit(options);
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      box.push_chunk(options, rank, kInitial);
    }
    return box.take_all();
  }

  // Returns the packets by which a rank pushes these rows, each element with this value.
  std::vector<Packet> pushes(uint32_t rank, uint32_t round, const Rows& rows, float value) {
    std::vector<Packet> packets;
    const std::vector<float> values(options.row_bytes, value);
    const auto has = bits(rows);
    for (uint32_t fragment = 0; fragment < 3;) {
      Packet packet = box.push(options, rank, fragment, value, round);
      const uint32_t count = wire::fragments_by_rows(layout(), has, fragment);
      if (count > 0) {
        packet.payload.resize(options.fragment_bytes);
        const uint32_t bytes =
            wire::write_rows(layout(), has, fragment, count, packet.payload.data(),
                             [&](uint32_t, uint32_t, uint32_t) {
                               return reinterpret_cast<const std::byte*>(values.data());
                             });
        packet.payload.resize(bytes);
        packet.header.payload_bytes = static_cast<uint16_t>(bytes);
        packet.header.flags = wire::flag::kRows;
      } else {
        packet.header.dtype_scale =
            static_cast<uint16_t>(wire::lacking_rows(layout(), has, fragment) << 4);
      }
      packets.push_back(packet);
      fragment += std::max(count, 1u);
    }
    return packets;
  }
  std::vector<Sent> push(uint32_t rank, uint32_t round, const Rows& rows, float value = 1) {
    for (const Packet& packet : pushes(rank, round, rows, value)) box.deliver(packet);
    return box.take_all();
  }
  // Returns the row's only weight.
  float weight(uint32_t row) const {
    const pipeline::Chunk& chunk = shard->chunks()[0];
    const uint32_t first = layout().begin_of(row) / 4;
    const uint32_t end = layout().end_of(row) / 4;
    for (uint32_t at = first; at < end; ++at) REQUIRE(chunk.weights[at] == chunk.weights[first]);
    return chunk.weights[first];
  }
  bool has_clear_sum() const {
    const float* sum = shard->chunks()[0].accumulator[0];
    return std::all_of(sum, sum + kElements, [](float value) { return value == 0; });
  }

  // Returns the rows that a rank's packets carry, by row, and checks their values.
  std::map<uint32_t, float> carried(const std::vector<Sent>& sent, uint32_t rank) {
    std::map<uint32_t, float> values;
    uint64_t covered = 0;
    for (const Sent& packet : sent) {
      if (packet.to != address_of(0, rank)) continue;
      REQUIRE(packet.header.type() == wire::PacketType::kResult);
      wire::Header header = packet.header;
      header.dtype_scale &= 15;  // without the number of contributors
      wire::RowsView rows;
      REQUIRE(wire::read_push(layout(), {header, packet.payload.data()}, rows));
      REQUIRE((covered & rows.fragments) == 0);
      covered |= rows.fragments;
      wire::for_each_run(layout(), rows, [&](const wire::RowRun& run, const std::byte* source) {
        for (uint32_t row = run.first_row; row < run.end_row; ++row) {
          float value = 0;
          std::memcpy(&value, source, sizeof(value));
          values[row] = value;
        }
      });
    }
    REQUIRE(covered == 0b111);
    return values;
  }

  Box box;
  JobOptions options;
  pipeline::JobShard* shard = nullptr;
};

constexpr optimizer::OptimizerSpec kSgd{.kind = OptimizerKind::kSgd, .learning_rate = 1};

Rows keys(const std::map<uint32_t, float>& rows) {
  Rows keys;
  for (const auto& [row, value] : rows) keys.insert(row);
  return keys;
}

}  // namespace

TEST_CASE("rows are summed over ranks, and every rank gets the rows that any has pushed") {
  TableJob job(kSgd);
  job.begin();
  REQUIRE(job.shard->has_tables);
  CHECK(job.push(0, 1, {0, 5, 9}).empty());
  const auto sent = job.push(1, 1, {5, 15}, 2);
  for (const uint32_t rank : {0u, 1u}) {
    const auto rows = job.carried(sent, rank);
    CHECK(keys(rows) == Rows{0, 5, 9, 15});
    CHECK(rows.at(0) == kInitial - 1);
    CHECK(rows.at(5) == kInitial - 3);
    CHECK(rows.at(15) == kInitial - 2);
  }
  CHECK(job.weight(0) == kInitial - 1);
  CHECK(job.weight(5) == kInitial - 3);
  CHECK(job.weight(1) == kInitial);
  CHECK(job.has_clear_sum());
  // The next round begins without the rows of this one.
  job.push(0, 2, {7});
  CHECK(keys(job.carried(job.push(1, 2, {}), 0)) == Rows{7});
}

TEST_CASE("a round without rows takes one packet each way") {
  TableJob job(kSgd);
  job.begin();
  CHECK(job.pushes(0, 1, {}, 1).size() == 1);
  job.push(0, 1, {});
  const auto sent = job.push(1, 1, {});
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].payload.size() == sizeof(wire::RowsHead) + sizeof(uint32_t));
  CHECK((sent[0].header.flags & wire::flag::kRows) != 0);
  CHECK((sent[0].header.flags & wire::flag::kLast) != 0);
  CHECK(job.shard->chunks()[0].open_round() == 2);
}

TEST_CASE("momentum and Adam leave the state of rows that are not pushed as it is") {
  for (const auto kind : {OptimizerKind::kMomentum, OptimizerKind::kAdam, OptimizerKind::kAdamW,
                          OptimizerKind::kAdagrad}) {
    const optimizer::OptimizerSpec spec{.kind = kind, .learning_rate = 0.5f, .momentum = 0.5f};
    TableJob job(spec, 1);
    job.begin();
    float weight = kInitial;
    float state[2] = {};
    const float gradient = 1;
    const auto step = [&](uint64_t steps) {
      const auto parameters = optimizer::step_parameters(spec, 1, 0, 1, steps);
      optimizer::reference::step(kind, optimizer::step_coefficients(spec, parameters), &weight,
                                 state, &gradient, 1);
    };
    job.push(0, 1, {3, 5});
    step(1);
    CHECK(job.weight(3) == weight);
    CHECK(job.weight(5) == weight);
    for (const uint32_t round : {2u, 3u}) job.push(0, round, {4});
    CHECK(job.weight(3) == weight);
    job.push(0, 4, {3, 4});
    step(4);
    CHECK(job.weight(3) == weight);
    CHECK(job.weight(6) == kInitial);
  }
}

TEST_CASE("nearly all rows of a fragment may be pushed, and the others stay") {
  TableJob job({.kind = OptimizerKind::kMomentum, .learning_rate = 1, .momentum = 0.5f}, 1);
  // Fragment 1 ends with 4 bytes of row 10, which have no room for the bitmap.
  job.options.row_bytes = 208;
  job.options.row_skipped_bytes = 36;
  job.begin();
  Rows rows;
  for (uint32_t row = 0; row < job.layout().row_count(); ++row) {
    if (row != 10) rows.insert(row);
  }
  CHECK(job.pushes(0, 1, rows, 1).at(1).header.dtype_scale >> 4 == wire::kLacksLastRow);
  for (const uint32_t round : {1u, 2u}) job.push(0, round, rows);
  CHECK(job.weight(10) == kInitial);
  CHECK(job.weight(9) == kInitial - 1 - 1.5f);
  CHECK(job.weight(11) == kInitial - 1 - 1.5f);
}

TEST_CASE("a packet by rows counts once, whole or not at all") {
  TableJob job(kSgd);
  job.begin();
  const auto packets = job.pushes(0, 1, {0, 5, 9}, 1);
  REQUIRE(packets.size() == 1);  // it covers all fragments
  job.box.deliver(packets[0]);
  job.box.deliver(packets[0]);
  CHECK(job.box.count(Counter::kDuplicate) == 1);
  // A packet that overlaps with one that has arrived would count a fragment twice.
  job.box.deliver(job.box.push(job.options, 0, 1, 7, 1));
  CHECK(job.box.count(Counter::kDuplicate) == 2);
  job.push(1, 1, {});
  CHECK(job.weight(5) == kInitial - 1);
  // After the round the same packet shows that the rank lacks the result. It is sent whole.
  job.box.deliver(packets[0]);
  const auto again = job.box.take_all();
  REQUIRE(again.size() == 3);
  for (const Sent& packet : again) CHECK((packet.header.flags & wire::flag::kRows) == 0);
}

TEST_CASE("a rank that asks gets whole fragments") {
  TableJob job(kSgd);
  job.begin();
  job.push(0, 1, {5});
  job.push(1, 1, {5});
  job.box.deliver(job.box.pull(job.options, 1, 1, 0b001));
  const auto sent = job.box.take_all();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].payload.size() == 1024);
  CHECK(sent[0].value() == kInitial - 2);  // fragment 1 begins with the end of row 5
  CHECK(sent[1].value() == kInitial);
}

TEST_CASE("a push that does not fit a table is refused and changes nothing") {
  TableJob job(kSgd);
  const Packet early = job.pushes(0, 0, {5}, 1).at(0);
  job.shard = &job.box.admit(job.options);
  job.box.deliver(early);  // initial weights come whole
  CHECK(job.box.count(Counter::kRejectLength) == 1);
  for (const uint32_t rank : {0u, 1u}) job.box.push_chunk(job.options, rank, kInitial);
  job.box.take_all();
  const Packet sound = job.pushes(0, 1, {5}, 1).at(0);
  const auto deliver = [&](auto&& spoil) {
    Packet packet = sound;
    spoil(packet);
    packet.header.payload_bytes = static_cast<uint16_t>(packet.payload.size());
    job.box.deliver(packet);
  };
  deliver([](Packet& packet) { packet.payload.resize(packet.payload.size() - 4); });
  deliver([](Packet& packet) { packet.payload[0] = std::byte{4}; });
  deliver([](Packet& packet) { packet.payload.clear(); });
  CHECK(job.box.count(Counter::kRejectLength) == 4);
  deliver([](Packet& packet) { packet.header.fragment = 3; });
  CHECK(job.box.count(Counter::kRejectFragment) == 1);
  deliver([](Packet& packet) { packet.header.dtype_scale = 1; });
  CHECK(job.box.count(Counter::kRejectDtype) == 1);
  CHECK(job.shard->chunks()[0].claimed[0] == 0);
  CHECK(job.has_clear_sum());
}

TEST_CASE("pushes of whole fragments go together with pushes by rows") {
  TableJob job(kSgd);
  job.begin();
  job.push(0, 1, {5});
  job.box.push_chunk(job.options, 1, 2, 1);
  CHECK(job.weight(5) == kInitial - 3);
  CHECK(job.weight(0) == kInitial - 2);
  const auto rows = job.carried(job.box.take_all(), 0);
  CHECK(rows.size() == job.layout().row_count());
}

TEST_CASE("an excluded rank's rows that have arrived stay in the round") {
  TableJob job(kSgd, 3);
  job.options.partial = true;
  job.begin();
  job.push(2, 1, {9});
  job.push(0, 1, {5});
  job.push(1, 1, {5});
  const auto sent = job.box.take_all();
  CHECK(job.weight(9) == kInitial - 1);
  CHECK(job.weight(5) == kInitial - 2);
  CHECK(sent.empty());
  job.push(0, 2, {1});
  job.push(1, 2, {2});
  job.box.engine.execute(
      {.kind = pipeline::CommandKind::kExclude, .shard = job.shard, .rank = 2, .generation = 21});
  CHECK(keys(job.carried(job.box.take_all(), 0)) == Rows{1, 2});
}

TEST_CASE("where pushes are applied on arrival, only the pushed rows are stepped") {
  TableJob job({.kind = OptimizerKind::kMomentum, .learning_rate = 1, .momentum = 0.5f}, 2,
               {.model = wire::SyncModel::kAsp});
  CHECK(job.begin().size() == 6);  // the initial weights leave whole
  const auto first = job.carried(job.push(0, 1, {0, 5, 9}), 0);
  CHECK(keys(first) == Rows{0, 5, 9});
  CHECK(first.at(5) == kInitial - 1);
  CHECK(job.weight(1) == kInitial);
  // Rank 1 lacks rank 0's update too.
  const auto second = job.carried(job.push(1, 1, {5, 15}), 1);
  CHECK(keys(second) == Rows{0, 5, 9, 15});
  CHECK(second.at(5) == kInitial - 1 - 1.5f);
  CHECK(second.at(15) == kInitial - 1);
  CHECK(second.at(0) == kInitial - 1);
}

TEST_CASE("a reply has the rows that have changed since the rank's last read, also if it is lost") {
  TableJob job(kSgd, 2, {.model = wire::SyncModel::kAsp});
  job.begin();
  CHECK(keys(job.carried(job.push(0, 1, {1}), 0)) == Rows{1});
  job.push(1, 1, {2});
  job.push(1, 2, {3});
  // Rank 0 asks for its first reply again: it may not have got row 1.
  job.box.deliver(job.box.pull(job.options, 0, 1));
  CHECK(keys(job.carried(job.box.take_all(), 0)) == Rows{1, 2, 3});
  job.push(1, 3, {4});
  // It may have got only the first reply, which was made before rows 2 and 3 changed.
  CHECK(keys(job.carried(job.push(0, 2, {1}), 0)) == Rows{1, 2, 3, 4});
  CHECK(keys(job.carried(job.push(0, 3, {}), 0)).empty());
}

TEST_CASE("in model drop replies are whole, because a rank may miss rounds") {
  TableJob job(kSgd, 2, {.model = wire::SyncModel::kDrop, .quorum = 1});
  job.begin();
  const auto sent = job.push(0, 1, {5});
  REQUIRE(sent.size() == 3);
  CHECK(job.weight(5) == kInitial - 1);
  CHECK(job.weight(6) == kInitial);
  // A late packet by rows covers three fragments of a closed round.
  job.push(1, 1, {7});
  CHECK(job.shard->sessions()[1].dropped.get() == 1);
  CHECK(job.weight(7) == kInitial);
}

}  // namespace pbox::test::engine_tables_test
